"""Owns what becomes of a run's evaluations: which splits are due, their totals and lines, the best, patience.

A stop may cut an evaluation short; what is left is part of the next checkpoint. This file must not know when
an evaluation is due, nor how a trainer makes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from app_trainer_sdk.training.best import Best
from app_trainer_sdk.training.metrics import (
    OUT_OF_MEMORY,
    append_line,
    count_lines,
    keep_lines,
    ratio,
    read_pairs,
)
from app_trainer_sdk.training.randomness import CPU, global_seeds

if TYPE_CHECKING:
    from app_trainer_sdk.contract import Trainer
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.training.drive import Desk

SPLITS_DURING, SPLITS_AT_END = ("validation",), ("validation", "test")


class Evaluations:
    """The evaluations of one start.

    Attributes:
        pending: splits that are still to be looked at.
        best: the best one so far.
        ended: why training ends before the plan's last update; empty while it does not.
    """

    def __init__(self, trainer: Trainer, run: Run, desk: Desk) -> None:
        self._trainer = trainer
        self._run = run
        self._desk = desk
        self.pending: list[str] = []
        self.best = Best.of(desk.plan)
        self.ended = ""

    def add(self, *, last: bool = False) -> None:
        """Evaluations are due, after the last update of more splits."""
        self.pending = [*(SPLITS_AT_END if last else SPLITS_DURING)]

    def look(self, state: Any, step: int) -> None:
        """Evaluate what is pending. A stop leaves the rest pending, and the checkpoint says so."""
        while self.pending:
            split = self.pending[0]
            started = self._desk.clock()
            # A trainer's own loop may draw from the global generators: looking more often moves no number.
            with global_seeds(self._run.random("evaluate", split).seed, self._run.device or CPU):
                sums, recovered = self._sum_up(state, split)
            for variant in recovered:
                self._desk.channel.say("recovered", step=step, **variant)
            if split in SPLITS_DURING:
                self.best.check(dict.fromkeys(sums))
            if sums:
                self._write(step, split, sums, self._desk.clock() - started, recovered)
            del self.pending[0]

    def end_early(self, state: Any, step: int) -> None:
        """Ask for no more updates when patience has run out; what is left is the last evaluation."""
        if self.best.exhausted and step < self._desk.plan.updates and not self.ended:
            found = f"{self.best.without_better} evaluations without a better {self.best.metric}"
            self.ended = f"{found} than {self.best.value} after update {self.best.step}"
            self.pending = [split for split in SPLITS_AT_END if split not in SPLITS_DURING]
            self.look(state, step)

    def document(self) -> dict[str, Any]:
        """What a checkpoint keeps of them."""
        return {
            "evaluation_lines": count_lines(self._desk.layout.evaluations),
            "evaluations_pending": list(self.pending),
            "best": self.best.document(),
            "ended": self.ended,
        }

    def take_up(self, document: Mapping[str, Any]) -> None:
        """Continue from what a checkpoint kept; lines written past it are cut."""
        self.pending = [str(split) for split in document["evaluations_pending"]]
        self.best.take_up(document["best"])
        self.ended = str(document["ended"])
        keep_lines(self._desk.layout.evaluations, int(document["evaluation_lines"]))

    def _write(
        self, step: int, split: str, sums: Mapping[str, tuple[float, float]], seconds: float,
        recovered: list[Any],
    ) -> None:  # fmt: skip
        numbers = {name: ratio(*pair) for name, pair in sums.items()}
        row = {"step": step, "split": split, "seconds": seconds, **numbers}
        tried = {OUT_OF_MEMORY: recovered} if recovered else {}
        append_line(self._desk.layout.evaluations, {**row, **tried})
        if split in SPLITS_DURING and step > 0:
            self.best.take(step, numbers)
        self._desk.channel.say("evaluation", **row)

    def _sum_up(self, state: Any, split: str) -> tuple[dict[str, tuple[float, float]], list[Any]]:
        """Totals over the split, reduced batch by batch: no prediction is kept; also what did not fit."""
        sums: dict[str, tuple[float, float]] = {}
        recovered: list[Any] = []
        batches = self._trainer.evaluate(self._run, state, split)
        try:
            for terms in batches:
                recovered += terms.recovered
                for name, (total, count) in read_pairs(terms.metrics).items():
                    before = sums.get(name, (0.0, 0.0))
                    sums[name] = (before[0] + total, before[1] + count)
                self._run.check()
        finally:
            end_iterator(batches)  # a stop must find the modes and weights of training, not of evaluation
        return sums, recovered


def end_iterator(iterator: Iterator[Any]) -> None:
    """End a trainer's generator where it stands; other iterators have nothing to end."""
    close = getattr(iterator, "close", None)
    if close is not None:
        close()
