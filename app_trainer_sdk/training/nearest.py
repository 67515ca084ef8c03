"""Owns what a run that ran out of memory is told to change: settings that the planner finds to fit.

The planner is asked in a process of its own, on processors alone and for a limited time. What could not be
asked is told as not checked, and why. This file must not know how memory ran out, nor how it is predicted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from app_trainer_sdk.errors import TrainerError
from app_trainer_sdk.gpus import Card
from app_trainer_sdk.planning.process import ask
from app_trainer_sdk.quantities import GIB, MIB
from app_trainer_sdk.training.device import has_bf16

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.hyperparameters import Hyperparameters
    from app_trainer_sdk.training.state import SupervisedState

#: A run that has failed waits no longer for advice.
SECONDS = 60.0
#: What the driver and loaded kernels take of a card, beside torch's allocator; and cuBLAS's workspaces.
CONTEXT_BYTES, LIBRARY_BYTES = 650 * MIB, 64 * MIB
#: Settings that move no memory, and that other settings would contradict.
LEFT_OUT = {
    "updates", "epochs", "warmup_updates", "evaluate_every", "checkpoint_every", "gradient_accumulation_steps",
}  # fmt: skip

Ask = Callable[..., dict[str, Any]]


def hint(
    trainer: SupervisedTrainer, run: Run, state: SupervisedState, guess: str, *, ask: Ask = ask,
    card: Card | None = None,
) -> str:  # fmt: skip
    """What to change, in words.

    Args:
        trainer: the trainer; its class must be importable by name, as for a plan.
        run: the handle.
        state: whose settings did not fit.
        guess: settings that take less, told where nothing could be checked.
        ask: asks the planning process; given a request and ``seconds``.
        card: what the settings must fit; the run's own card when not given.
    """
    assert run.device is not None
    if card is None:
        if run.device.type != "cuda":
            return f"{guess} (not checked: the planner knows the memory of cards alone)"
        card = _card(run.device)
    replicas = state.team.size
    request = {
        "job": _job(trainer, run, state.settings, replicas), "replicas": replicas, "nearest": True,
        "cards": [dataclasses.asdict(card)],
    }  # fmt: skip
    try:
        found = ask(request, seconds=SECONDS)
    except TrainerError as error:
        return f"{guess} (not checked: {str(error).splitlines()[0]})"
    return _told(found)


def _told(found: Mapping[str, Any]) -> str:
    there = f"of {found['available_bytes'] / GIB:.2f} GiB"
    larger = f"take a {found['card']}" if found["card"] else "take a larger card than is known"
    if not found["settings"]:
        return f"{larger}: no setting that takes less fits, the leanest is predicted {_gib(found)} {there}"
    changes = " and ".join(
        f"/hyperparameters/{name} to {str(value).lower()}" for name, value in found["settings"].items()
    )
    return f"{changes} (predicted {_gib(found)} {there}), or {larger}"


def _gib(found: Mapping[str, Any]) -> str:
    return f"{found['needed_bytes'] / GIB:.2f} GiB"


def _card(device: torch.device) -> Card:
    """The card there is, less what other processes hold of it."""
    free, total = torch.cuda.mem_get_info(device)
    mine = torch.cuda.memory_reserved(device) + CONTEXT_BYTES
    name = torch.cuda.get_device_name(device)
    available = min(total, free + mine)
    return Card(name, name, available, "", has_bf16(device), CONTEXT_BYTES, LIBRARY_BYTES)


def _job(trainer: SupervisedTrainer, run: Run, settings: Hyperparameters, replicas: int) -> dict[str, Any]:
    """The job as it was being done, every setting said."""
    kind = type(trainer)
    said = {name: value for name, value in settings.model_dump(mode="json").items() if name not in LEFT_OUT}
    if said["global_batch"] % (said["microbatch"] * replicas):
        del said["microbatch"]  # halved until it divides no more: the leanest that does stands for it
    return {
        "trainer": f"{kind.__module__}:{kind.__qualname__}", "model": run.model.name, "method": run.method,
        "inputs": {name: {"url": "/nowhere"} for name, each in kind.inputs.items() if each.required},
        "hyperparameters": said,
    }  # fmt: skip
