"""Owns the mechanics check: a handful of rows, trained on again and again, must lower their own loss.

It shows that gradients reach what trains and that the rate is not out of all reason; it says nothing about
rows that were not trained on. This file must not know what is made of the answer.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy

from app_trainer_sdk.pilot_verdict import LEARNED_FACTOR
from app_trainer_sdk.training.evaluation import measure_batch, measuring
from app_trainer_sdk.training.feed import LoadedWindow, Microbatch, to_device
from app_trainer_sdk.training.metrics import ratio, read_pairs
from app_trainer_sdk.training.order import Window
from app_trainer_sdk.training.rehearsal import make_update
from app_trainer_sdk.values import Batch

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.training.state import SupervisedState

MOST_UPDATES = 60
#: Rates are chosen for thousands of updates; what is asked here must come within a few dozen.
RATE_FACTOR = 10.0


def learn_a_handful(trainer: SupervisedTrainer, run: Run, ids: numpy.ndarray, batch: Batch) -> dict[str, Any]:
    """Train on one microbatch until its loss has fallen to :data:`LEARNED_FACTOR`, or for 60 updates.

    Args:
        trainer: the trainer.
        run: a prepared handle. The rate is ten times the job's, without warm-up and decay.
        ids: the rows' numbers.
        batch: the rows, on the host.

    Returns:
        rows, updates, loss before and after as evaluation measures it (None when not finite), and ``learned``.
    """
    state = trainer.begin(_constant(run), None)
    first = last = _loss(trainer, run, state, batch)
    updates = 0
    while updates < MOST_UPDATES and not _learned(first, last):
        run.check()
        make_update(trainer, run, state, window_of(state.counters.position, ids, batch))
        updates += 1
        if updates % 5 == 0:
            last = _loss(trainer, run, state, batch)
    return {
        "rows": len(ids), "ids": ids.tolist(), "updates": updates, "factor": LEARNED_FACTOR,
        "rate": state.settings.learning_rate, "learned": _learned(first, last),
        "first": first, "last": last,
    }  # fmt: skip


def window_of(position: int, ids: numpy.ndarray, batch: Batch) -> LoadedWindow:
    """A window of one microbatch, ``batch``, whose rows are ``ids``."""
    window = Window(position, 0, ids, position + len(ids))
    return LoadedWindow(window, [Microbatch(batch, 0, 0, len(ids))], 1, 0.0)


def _constant(run: Run) -> Run:
    rate = run.settings.learning_rate * RATE_FACTOR
    changed = {
        "schedule": "constant", "warmup_updates": 0, "learning_rate": rate, "ema_decay": 0.0,
        "nonfinite_limit": 1000, "torch_compile": False,
    }  # fmt: skip
    return dataclasses.replace(run, settings=run.settings.model_copy(update=changed))


def _loss(trainer: SupervisedTrainer, run: Run, state: SupervisedState, batch: Batch) -> float | None:
    assert run.device is not None
    with measuring(state):
        terms = measure_batch(trainer, run, state, to_device(batch, run.device), run.random("mechanics"))
        return ratio(*read_pairs(terms.metrics)["loss"])


def _learned(first: float | None, last: float | None) -> bool:
    if first is None or last is None:
        return False
    return last <= LEARNED_FACTOR * first if first > 0 else last < first
