"""Owns the rehearsal of ordinary training: two updates with the heaviest batch, and one evaluation.

It calls the loop's own functions, so that what is rehearsed and what is run cannot drift apart. Two updates,
since the optimizer's state is made in the first one; in the second one two microbatches where gradients
accumulate, since one of them meets the gradients of the other. Nothing is read from a dataset. This file must
not know whether tensors hold data, or who watches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training import oom
from app_trainer_sdk.training.evaluation import measure_batch, measuring
from app_trainer_sdk.training.feed import LoadedWindow, Microbatch, to_device
from app_trainer_sdk.training.order import Window
from app_trainer_sdk.training.state import SupervisedState
from app_trainer_sdk.training.update import look_ahead, settle_update, start_update
from app_trainer_sdk.values import Batch, StepInfo

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run

UPDATES = 2


def _nobody(place: str) -> None:
    """Nobody watches."""


def rehearse(
    trainer: SupervisedTrainer, run: Run, state: SupervisedState, batch: Batch, *,
    mark: Callable[[str], None] = _nobody, updates: int = UPDATES,
) -> None:  # fmt: skip
    """Make two updates and evaluate, all with ``batch``.

    Args:
        trainer: the trainer.
        run: its handle, settings resolved.
        state: from ``assemble``; it is changed as training changes it.
        batch: from ``largest_batch``, of one microbatch's rows.
        mark: told where the rehearsal is: ``update 1``, ``update 2``, ``evaluate``.
        updates: how many; none is left of training when it is 0.

    Raises:
        InternalError: an update was not made, so that what was seen would prove nothing.
    """
    for number in range(1, updates + 1):
        mark(f"update {number}")
        window = _window(state.settings, batch, last=number == updates)
        info = make_update(trainer, run, state, window)
        if not info.applied:
            raise InternalError(f"rehearsed update {number} was not made: {info.why}", expected="an update")
        del info
    mark("evaluate")
    assert run.device is not None
    with measuring(state):
        measure_batch(trainer, run, state, to_device(batch, run.device), run.random("evaluate", "rehearsal", 0))


def make_update(trainer: SupervisedTrainer, run: Run, state: SupervisedState, window: LoadedWindow) -> StepInfo:
    """One whole update of a window that is not followed by another.

    Raises:
        GpuOutOfMemory: it does not fit; or HostOutOfMemory, or PeerFailed where it did not fit on another rank.
    """
    agreed = state.team.agree(window.units, window.empty)
    buffers = state.buffers.copies()
    try:
        update = start_update(run, state, window, agreed)
        look_ahead(run, state, update, None)
        return settle_update(trainer, state, update, buffers)
    except oom.OutOfMemoryHere as error:
        why = error.shortage.why_not or "a rehearsal tries nothing smaller"
        raise oom.refusal(trainer, run, state, error.shortage, oom.described_inputs(window), why) from None


def _window(settings: Hyperparameters, batch: Batch, *, last: bool) -> LoadedWindow:
    rows, steps = settings.microbatch, settings.gradient_accumulation_steps
    assert rows != "auto"
    assert steps != "auto"
    count = min(steps, 2) if last else 1
    pieces = [Microbatch(batch, number, number * rows, rows) for number in range(count)]
    ids = numpy.arange(rows * len(pieces), dtype=numpy.int64)
    return LoadedWindow(Window(0, 0, ids, len(ids)), pieces, len(pieces), 0.0)
