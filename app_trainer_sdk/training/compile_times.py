"""Owns measuring what compiling takes and what it gives: the same update made both ways.

This file must not know whether compiling pays.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy

from app_trainer_sdk.tradeoffs import CompileTimes
from app_trainer_sdk.training.device import synchronize
from app_trainer_sdk.training.mechanics import window_of
from app_trainer_sdk.training.rehearsal import make_update
from app_trainer_sdk.values import Batch

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run

UPDATES = 4


def measure_compile(trainer: SupervisedTrainer, run: Run, ids: numpy.ndarray, batch: Batch) -> CompileTimes:
    """Begin and make some updates of one microbatch, uncompiled and compiled.

    Args:
        trainer: the trainer.
        run: a prepared handle.
        ids: the rows' numbers.
        batch: the rows, on the host.

    Returns:
        seconds to compile, and of an update with all its microbatches both ways.
    """
    steps = run.settings.gradient_accumulation_steps
    assert isinstance(steps, int)
    first, eager = _timed(trainer, run, ids, batch, compiled=False)
    compiled_first, compiled = _timed(trainer, run, ids, batch, compiled=True)
    return CompileTimes(max(0.0, compiled_first - first), eager * steps, compiled * steps)


def compile_document(trainer: SupervisedTrainer, run: Run, ids: numpy.ndarray, batch: Batch) -> dict[str, Any]:
    """The same as JSON; a model that cannot be compiled is no failed pilot."""
    try:
        times = measure_compile(trainer, run, ids, batch)
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises
        return {"failed": f"{type(error).__name__}: {error}"[:500]}
    return {name: value for name, value in dataclasses.asdict(times).items() if name != "source"}


def _timed(
    trainer: SupervisedTrainer, run: Run, ids: numpy.ndarray, batch: Batch, *, compiled: bool
) -> tuple[float, float]:
    """Seconds until the first update is made, and of each one after it."""
    device = run.device
    assert device is not None
    run = dataclasses.replace(run, settings=run.settings.model_copy(update={"torch_compile": compiled}))
    began = time.perf_counter()
    state = trainer.begin(run, None)
    seconds = []
    for _ in range(1 + UPDATES):
        run.check()
        make_update(trainer, run, state, window_of(state.counters.position, ids, batch))
        synchronize(device)
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
    first, *later = seconds
    return first, statistics.median(later)
