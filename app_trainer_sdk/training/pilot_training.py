"""Owns what training takes in a pilot: the longest rows, updates on the data, an evaluation, the prediction.

Each is a row of the ledger. This file must not know what comes before and after training, nor what the
measurements mean.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.handle import Run
from app_trainer_sdk.training.allocated import allocated_peak
from app_trainer_sdk.training.device import synchronize
from app_trainer_sdk.training.evaluation import opened
from app_trainer_sdk.training.evaluations import end_iterator
from app_trainer_sdk.training.phase_row import Row
from app_trainer_sdk.training.predict import predict
from app_trainer_sdk.training.rank import Rank, Ready
from app_trainer_sdk.training.rehearsal import rehearse
from app_trainer_sdk.training.state import Counters
from app_trainer_sdk.values import Stream

#: Updates on the data: at least the first number, more while they take less than so many seconds.
LEAST_UPDATES, MOST_UPDATES, UPDATE_SECONDS = 3, 20, 20.0
EVALUATED_BATCHES = 8


def measure_longest(
    rank: Rank, ready: Ready, trainer: SupervisedTrainer, run: Run, state: Any, measured: dict[str, Any]
) -> float:
    """Two updates and an evaluation of the longest rows, each a row of the ledger; seconds of an update."""
    assert run.device is not None
    batch = trainer.largest_batch(run, run.settings.microbatch)
    shapes = {name: list(each.shape) for name, each in batch.tensors.items()}
    places = Places(lambda place: ready.ledger.phase(place, inputs=shapes, releases=False), rank.enter)
    held = [*state.modules.root.parameters(), *state.modules.root.buffers(), *batch.tensors.values()]
    held += state.average.memory if state.average is not None else ()

    def work() -> None:
        with places:
            rehearse(trainer, run, state, batch, mark=places.mark)

    counted = allocated_peak(held, work) if run.device.type == "cpu" else None
    work()  # counting slowed it
    measured["longest_peak_bytes"] = places.peak if counted is None else counted
    state.counters = Counters()  # what follows begins where a run begins
    return places.rows["update 2"].seconds


def measure_updates(rank: Rank, ready: Ready, run: Run, state: Any, longest: float | None) -> dict[str, Any]:
    """Some updates on the data, as a run makes them."""
    device = _device(run)
    seconds, waits, examples, right = [], [], 0, True
    order, position = getattr(state, "order", None), 0
    steps = ready.opened.trainer.training_steps(run, state)
    began = last = time.perf_counter()
    try:
        for info in steps:
            now = time.perf_counter()
            seconds.append(now - last)
            waits.append(info.data_seconds)
            examples += info.examples
            if order is not None:
                window = order.window(position)
                right, position = right and info.ids_digest == window.digest(), window.after
            last = now
            run.check()
            enough = len(seconds) >= LEAST_UPDATES and now - began > UPDATE_SECONDS
            if rank.team.anywhere([enough or len(seconds) >= MOST_UPDATES])[0]:
                break
    finally:
        end_iterator(steps)
    if not seconds:
        raise InternalError("not one update was made", expected="updates on the data")
    # The first one warms up; with a single one there is nothing else to tell.
    later, later_waits = seconds[1:] or seconds, waits[1:] or waits
    told = {
        "measured": len(seconds), "seconds": statistics.median(later), "first_seconds": seconds[0],
        "data_seconds": statistics.median(later_waits), "longest_seconds": longest or max(seconds),
        "examples_per_second": examples / max(sum(seconds), 1e-9), "communication_seconds": None,
        "ids_right": right,
    }  # fmt: skip
    replica = getattr(state, "replica", None)
    if replica is not None:
        synchronize(device)
        started = time.perf_counter()
        replica.reduce(first=False)
        synchronize(device)
        told["communication_seconds"] = time.perf_counter() - started
    return told


def measure_evaluation(rank: Rank, ready: Ready, run: Run, state: Any) -> dict[str, Any] | None:
    """Seconds of one evaluation of the validation split, from its first batches."""
    trainer, device = ready.opened.trainer, _device(run)
    held_out = opened(trainer, run, state, "validation") if isinstance(trainer, SupervisedTrainer) else ()
    rows = 0 if isinstance(held_out, Stream) else len(held_out)
    synchronize(device)
    started, batches = time.perf_counter(), 0
    terms = trainer.evaluate(run, state, "validation")
    try:
        for _ in terms:
            batches += 1
            run.check()
            if batches == EVALUATED_BATCHES and rows:
                break
    finally:
        end_iterator(terms)
    if not batches:
        return None
    synchronize(device)  # nobody has read a number of them
    seconds = time.perf_counter() - started
    rounds = math.ceil(rows / (run.settings.microbatch * rank.team.size)) if rows else batches
    return {"batches": rounds, "measured": batches, "seconds": seconds / batches * rounds}


def compare_prediction(ready: Ready, measured: dict[str, Any]) -> None:
    """What the plan would have said of the same rehearsal, beside what was measured."""
    trainer, run = ready.opened.trainer, ready.opened.run
    peak = measured.pop("longest_peak_bytes", None)
    if not isinstance(trainer, SupervisedTrainer) or peak is None:
        return
    assert run.device is not None
    try:
        told = predict(trainer, run, kind=run.device.type).document()
    except Exception as error:  # noqa: BLE001 - a loss that cannot be rehearsed without data is no failed pilot
        measured["predicted"] = {"failed": f"{type(error).__name__}: {error}"}
        return
    # Export is not part of the rehearsal, and what is told of it is a bound.
    rehearsed = max(count for phase, count in told["phases"].items() if phase != "export")
    measured["predicted"] = {
        **told, "rehearsed_bytes": rehearsed, "measured_bytes": peak,
        "ratio": round(peak / max(rehearsed, 1), 4),
    }  # fmt: skip


def _device(run: Run) -> torch.device:
    assert run.device is not None
    return run.device


class Places:
    """The rows of the ledger that a rehearsal's marks divide it into.

    Args:
        phase: begins a row of this name.
        enter: told the name of each.
    """

    def __init__(
        self, phase: Callable[[str], AbstractContextManager[Row]], enter: Callable[[str], None]
    ) -> None:
        self.rows: dict[str, Row] = {}
        self._phase, self._enter = phase, enter
        self._open = ExitStack()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)

    def mark(self, place: str) -> None:
        """One place ends and the next one begins."""
        self._open.close()
        self._enter(f"longest {place}")
        self.rows[place] = self._open.enter_context(self._phase(f"longest {place}"))

    @property
    def peak(self) -> int:
        """Most bytes at once in any of them: the ledger begins the device's counter anew with each."""
        return max(row.peak for row in self.rows.values())
