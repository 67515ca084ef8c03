"""Owns the question which optional operations really work on a device: tried, compared, listed.

``python -m app_trainer_sdk.training.qualify [FILE]`` in a process of its own, since an operation that is not
made for a card may end the process, and compiling leaves traces. Asked in a rank only where an accelerator is
AMD's: there it cannot be told from the version of anything. This file must not know who wants the operations.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.files import read_json, write_json
from app_trainer_sdk.plan import Plan
from app_trainer_sdk.training.device import pick_device
from app_trainer_sdk.training.handover import run_module
from app_trainer_sdk.training.optim import eight_bit_problem

MODULE = "app_trainer_sdk.training.qualify"
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
#: Largest difference of attention in bf16 from the same in fp32, for values of about 1.
TOLERANCE = 0.05
#: Names as ``document`` lists them, and which setting asks for each.
EIGHT_BIT, COMPILE, ATTENTION = "optim_8bit", "torch_compile", "fused_attention"


def document(device: torch.device) -> dict[str, dict[str, Any]]:
    """For each operation whether it is qualified on ``device``, and why not."""
    problems = {
        EIGHT_BIT: eight_bit_problem(device),
        COMPILE: _problem(_compile, device),
        ATTENTION: _problem(_attention, device),
    }
    return {name: {"qualified": not problem, "why": problem or "tried"} for name, problem in problems.items()}


def qualify_in_process(
    folder: Path, check: Callable[[], None], *, module: str = MODULE
) -> dict[str, dict[str, Any]]:
    """The same from a process of its own; none is qualified when the process did not answer."""
    answer = folder / "operations.json"
    status = run_module(module, answer, check=check)
    try:
        found: dict[str, dict[str, Any]] = read_json(answer)
    except (FileNotFoundError, ValueError):
        why = f"the process that tried ended with status {status}"
        return {name: {"qualified": False, "why": why} for name in (EIGHT_BIT, COMPILE, ATTENTION)}
    return found


def refuse_unqualified(operations: Mapping[str, Mapping[str, Any]], plan: Plan) -> None:
    """Refuse to begin with an operation that was tried and does not work; attention falls back by itself.

    Raises:
        HardwareUnfit: the plan wants it.
    """
    for name in (EIGHT_BIT, COMPILE):
        knob, tried = plan.settings.get(name), operations.get(name)
        if knob is not None and knob.effective is True and tried is not None and not tried["qualified"]:
            raise HardwareUnfit(
                f"{name} does not work on {plan.device}: {tried['why']}", expected="a qualified operation",
                setting=f"/hyperparameters/{name} to false",
            )  # fmt: skip


def _problem(try_it: Callable[[torch.device], None], device: torch.device) -> str:
    try:
        try_it(device)
    except Exception as error:  # noqa: BLE001 - whatever a compiler or driver raises is the answer
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"
    return ""


def _compile(device: torch.device, backend: str = "inductor") -> None:
    def work(x: Any) -> Any:
        return (torch.nn.functional.gelu(x) * x).sum()

    eager, compiled = (torch.linspace(-2, 2, 4096, device=device, requires_grad=True) for _ in range(2))
    work(eager).backward()
    torch.compile(work, backend=backend)(compiled).backward()
    assert eager.grad is not None
    assert compiled.grad is not None
    if not torch.allclose(eager.grad, compiled.grad, atol=1e-4):
        raise RuntimeError("compiled gradients are others than without compiling")


def _attention(device: torch.device) -> None:
    shape = (1, 2, 128, 64)
    size = 128 * 64 * 2
    query, key, value = (
        torch.linspace(-1, 1, size, device=device).mul(each).sin().view(shape) for each in (1, 2, 3)
    )
    plain = scaled_dot_product_attention(query, key, value, is_causal=True)
    query, key, value = query.bfloat16(), key.bfloat16(), value.bfloat16()
    with sdpa_kernel(FUSED):
        fused = scaled_dot_product_attention(query, key, value, is_causal=True)
    worst = float((plain - fused.float()).abs().max())
    if not worst <= TOLERANCE:
        raise RuntimeError(f"fused attention differs by {worst:.3g} from the plain one")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the answer, or write it to a file."""
    words = sys.argv[1:] if arguments is None else arguments
    found = document(pick_device())
    if words:
        write_json(Path(words[0]), found)
    else:
        sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
