"""Owns the rehearsal without data of preparation phases: what each holds on the device at its fullest.

The trainer says what a phase builds, its largest batch and what it does with both; that is done on tensors that
hold nothing. This file must not know what a phase makes, or anything of training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from app_trainer_sdk.errors import InternalError, did_you_mean
from app_trainer_sdk.training.allocations import Allocations, Held
from app_trainer_sdk.training.dry_run import as_on, give_memory
from app_trainer_sdk.training.randomness import CPU
from app_trainer_sdk.values import PhaseShapes

if TYPE_CHECKING:
    from app_trainer_sdk.contract import Trainer
    from app_trainer_sdk.handle import Run


def rehearse_phases(trainer: Trainer, run: Run, *, kind: str = "cpu") -> dict[str, Held]:
    """The fullest instant of each phase that the trainer tells of and that uses the device, by its name.

    Args:
        trainer: the trainer.
        run: its handle: settings resolved, ``dtype`` the precision.
        kind: the type of device that is planned for. Operators are the CPU's whatever it is.
    """
    run = dataclasses.replace(run, device=CPU)
    told = shapes_of(trainer, run)
    with as_on(kind):
        return {name: _fullest(shapes, kind) for name, shapes in told.items() if shapes is not None}


def shapes_of(trainer: Trainer, run: Run) -> Mapping[str, PhaseShapes | None]:
    """What the trainer tells of its phases.

    Raises:
        InternalError: it speaks of a phase that it does not have.
    """
    told = trainer.phase_shapes(run)
    for name in told:
        if name not in trainer.preparation:
            raise InternalError(
                f"phase_shapes() told of {name!r}", expected="a name from preparation",
                setting=did_you_mean(name, trainer.preparation),
            )  # fmt: skip
    return told


def _fullest(shapes: PhaseShapes, kind: str) -> Held:
    with torch.device("meta"):
        module = shapes.build()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    give_memory([module], fake)
    account = Allocations(kind=kind)
    with account:
        account.mark("work")
        account.give(module.parameters(), "parameters")
        account.give(module.buffers(), "buffers")
        with fake:
            batch = shapes.batch()
            account.give(batch.values(), "batch")
            shapes.work(module, batch)
    return max(account.peaks().values(), key=lambda held: held.total)
