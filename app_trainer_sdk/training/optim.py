"""Owns optimizers: which one is built, and whether 8-bit state works here.

Only this file knows bitsandbytes; ``python -m app_trainer_sdk.training.optim DEVICE`` tries its 8-bit AdamW.
It must not know schedules, when a step is due, or how state is kept.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training.uncompiled import leave_compiler_out

#: Keys of a parameter group that a trainer may set beside ``params``.
GROUP_KEYS = frozenset({"params", "lr_scale", "weight_decay"})
#: The class of bitsandbytes that is built for ``optim_8bit``.
EIGHT_BIT = "AdamW8bit"
#: This file as a program, which tries it, and how long that may take with its imports.
PROGRAM = (sys.executable, "-m", "app_trainer_sdk.training.optim")
PROGRAM_SECONDS = 120.0


def build_optimizer(
    groups: Sequence[Mapping[str, Any]], settings: Hyperparameters, device: torch.device, root: nn.Module
) -> torch.optim.Optimizer:
    """The optimizer the settings ask for; AdamW fused where the device has it.

    Args:
        groups: from ``parameter_groups``: ``params`` and optionally ``lr_scale`` (multiplies the schedule)
            and ``weight_decay``.
        settings: resolved hyperparameters.
        device: where the parameters live.
        root: the model, whose embeddings keep 32-bit state.
    """
    prepared = [_prepare_group(group, settings) for group in groups]
    prepared = [group for group in prepared if group["params"]]
    if not prepared:
        raise InternalError("no parameter trains", expected="at least one parameter with requires_grad")
    _check_grouped([each for group in prepared for each in group["params"]], parameter_names(root))
    rate = settings.learning_rate
    leave_compiler_out()
    if settings.optimizer == "sgd":
        # Not fused: torch 2.13's kernel fails once a parameter gets its first gradient after the others, and
        # on the CPU writes wrong momentum, other at each run, for bf16 and fp16 parameters.
        return torch.optim.SGD(prepared, lr=rate, momentum=settings.beta1)
    betas = (settings.beta1, settings.beta2)
    if settings.optim_8bit is True:
        _keep_wide(_embeddings(root))
        return _eight_bit_adamw(prepared, rate, betas, settings.epsilon)
    return torch.optim.AdamW(
        prepared, lr=rate, betas=betas, eps=settings.epsilon, fused=_can_fuse(prepared, device)
    )


def load_library(settings: Hyperparameters) -> None:
    """Import what the settings' optimizer comes from. Importing it makes tensors too, which are nobody's."""
    if settings.optim_8bit is True:
        _bitsandbytes()


def takes_memory(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the next step takes memory that is not taken already.

    Each does that makes state for some parameter. Later ones do not, except plain AdamW's (for half-precision
    weights on the CPU), which computes with temporaries after it has begun to write.
    """
    if isinstance(optimizer, torch.optim.AdamW) and not optimizer.defaults["fused"]:
        return True
    if len(optimizer.state) == sum(len(group["params"]) for group in optimizer.param_groups):
        return False
    for group in optimizer.param_groups:
        if isinstance(optimizer, torch.optim.SGD) and not group["momentum"]:
            continue  # it keeps no state
        if any(each.grad is not None and not optimizer.state.get(each) for each in group["params"]):
            return True
    return False


def step(optimizer: torch.optim.Optimizer) -> None:
    """Make one step; SGD's takes no memory, as the others' do not."""
    if isinstance(optimizer, torch.optim.SGD):
        with _decayed(optimizer):
            optimizer.step()
    else:
        optimizer.step()


@contextlib.contextmanager
def _decayed(optimizer: torch.optim.SGD) -> Iterator[None]:
    """Inside, SGD needs not add the weight decay to a copy of every gradient.

    It is added to the gradients themselves, with the same numbers: they are not needed afterwards.
    """
    groups = optimizer.param_groups
    decays = [group["weight_decay"] for group in groups]
    with torch.no_grad():
        for group in groups:
            trained = [each for each in group["params"] if each.grad is not None]
            if group["weight_decay"] and trained:
                torch._foreach_add_([each.grad for each in trained], trained, alpha=group["weight_decay"])
            group["weight_decay"] = 0.0
    try:
        yield
    finally:
        for group, decay in zip(groups, decays, strict=True):
            group["weight_decay"] = decay


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group, times its ``lr_scale``."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


def eight_bit_problem(device: torch.device, step: Callable[[torch.device], None] | None = None) -> str:
    """Why 8-bit AdamW does not work on ``device``; empty when a real step of it did.

    Importing the library says nothing: it loads where it has no kernel. Nothing is left behind.

    Args:
        device: where the step is made.
        step: makes it, or raises.
    """
    try:
        (step or _eight_bit_step)(device)
    except Exception as error:  # noqa: BLE001 - whatever a library or a driver raises is the answer
        reason = str(error).strip().partition("\n")[0][:200]
        return f"{type(error).__name__}: {reason}".rstrip(": ")
    return ""


def eight_bit_problem_apart(device: torch.device, program: Sequence[str] = PROGRAM) -> str:
    """The same; on a card from a process of its own, which the library ends when a kernel of it fails.

    Args:
        device: where the step is made.
        program: prints the answer as JSON in its last line; given the device as a word.
    """
    if device.type == "cpu":
        return eight_bit_problem(device)
    try:
        done = subprocess.run(
            [*program, str(device)], capture_output=True, text=True, check=False, timeout=PROGRAM_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"a step of it took longer than {PROGRAM_SECONDS:.0f} s"
    if done.returncode:
        said = (done.stderr.strip() or "nothing").splitlines()[-1][:200]
        return f"a step of it ended its process with status {done.returncode}, which said: {said}"
    answer: str = json.loads(done.stdout.splitlines()[-1])
    return answer


def required_dtypes(optimizer: torch.optim.Optimizer, root: nn.Module) -> dict[Tensor, torch.dtype]:
    """The dtype each parameter's moments must have; empty for an optimizer that keeps the parameters'."""
    if type(optimizer).__name__ != EIGHT_BIT:
        return {}
    library: Any = optimizer
    embeddings = set(_embeddings(root))
    required: dict[Tensor, torch.dtype] = {}
    for parameter in [each for group in optimizer.param_groups for each in group["params"]]:
        asked = library.mng.pid2config.get(id(parameter), {}).get("optim_bits")  # a trainer may ask as well
        wide = parameter in embeddings or parameter.numel() < library.args.min_8bit_size or asked == 32
        required[parameter] = torch.float32 if wide else torch.uint8
    return required


def parameter_names(root: nn.Module) -> dict[Tensor, str]:
    """Canonical name of every trainable parameter of ``root``; a tied one has its first name."""
    return {parameter: name for name, parameter in root.named_parameters() if parameter.requires_grad}


def _check_grouped(grouped: Sequence[Tensor], names: Mapping[Tensor, str]) -> None:
    """What trains must be in one group: in none it would stay as it is, without a word."""
    times = Counter(grouped)
    twice = [names.get(each, "a parameter") for each, count in times.items() if count > 1]
    nowhere = [name for parameter, name in names.items() if parameter not in times]
    foreign = [tuple(each.shape) for each in grouped if each not in names]
    if twice or nowhere or foreign:
        found = f"{twice[0]} in two groups" if twice else f"{', '.join(nowhere[:5])} in no group"
        if not twice and not nowhere:
            found = f"a parameter of the shape {foreign[0]} that is no part of root"
        raise InternalError(
            f"parameter_groups has {found}", expected="each parameter of root that trains, once",
            setting="parameter_groups, or requires_grad",
        )  # fmt: skip


def _prepare_group(group: Mapping[str, Any], settings: Hyperparameters) -> dict[str, Any]:
    unknown = set(group) - GROUP_KEYS
    if unknown:
        raise InternalError(
            f"parameter_groups returned the key {sorted(unknown)[0]!r}", expected=", ".join(sorted(GROUP_KEYS))
        )
    params: Iterable[nn.Parameter] = group["params"]
    return {
        "params": [each for each in params if each.requires_grad],
        "lr_scale": group.get("lr_scale", 1.0),
        "weight_decay": group.get("weight_decay", settings.weight_decay),
    }


def _eight_bit_adamw(
    groups: Sequence[dict[str, Any]], rate: float, betas: tuple[float, float], epsilon: float
) -> torch.optim.Optimizer:
    """AdamW with block-wise 8-bit state; tensors below 4,096 elements keep 32 bits."""
    optimizer: torch.optim.Optimizer = _bitsandbytes().optim.AdamW8bit(
        groups, lr=rate, betas=betas, eps=epsilon
    )
    return optimizer


def _bitsandbytes() -> Any:  # its annotations are not complete
    import bitsandbytes

    return bitsandbytes


def _eight_bit_step(device: torch.device) -> None:
    """One step on the smallest tensor that is quantised; AdamW's first step moves by the learning rate."""
    parameter = nn.Parameter(torch.ones(4096, device=device))
    parameter.grad = torch.ones_like(parameter)
    optimizer = _eight_bit_adamw([{"params": [parameter], "weight_decay": 0.0}], 0.5, (0.9, 0.999), 1e-8)
    optimizer.step()
    kind = optimizer.state[parameter]["state1"].dtype
    if kind != torch.uint8:
        raise RuntimeError(f"its state is {kind} instead of torch.uint8")
    moved = float((1.0 - parameter.detach()).mean())
    if not 0.45 < moved < 0.55:
        raise RuntimeError(f"its step is {moved:.3g} instead of 0.5")


def _embeddings(root: nn.Module) -> Iterator[Tensor]:
    """Weights of embeddings, wherever else they are tied to. Their gradients are the most uneven of a model,
    and bitsandbytes advises against quantising what follows from them.
    """
    for module in root.modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            yield module.weight


def _keep_wide(parameters: Iterable[Tensor]) -> None:
    """Override the bits of single parameters. A key in a parameter group is not read by bitsandbytes.

    Its manager outlives the model and knows parameters by their address, so that what is freed must be
    forgotten: the next tensor there would inherit the override.
    """
    manager = _bitsandbytes().optim.GlobalOptimManager.get_instance()
    for parameter in parameters:
        manager.override_config(parameter, "optim_bits", 32)
        weakref.finalize(parameter, manager.pid2config.pop, id(parameter), None)


def _can_fuse(groups: Sequence[Mapping[str, Any]], device: torch.device) -> bool:
    """Torch's fused AdamW takes floating-point parameters on CUDA.

    On the CPU only full precision: in torch 2.13 it rounds bf16 weights otherwise than the plain one, and
    fp16 weights become NaN. It may go when ``test_optimizer_state.py`` passes without it.
    """
    everything = [parameter for group in groups for parameter in group["params"]]
    if device.type == "cpu":
        return all(each.dtype in (torch.float32, torch.float64) for each in everything)
    return device.type == "cuda" and all(torch.is_floating_point(each) for each in everything)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(eight_bit_problem(torch.device(sys.argv[1]))) + "\n")
