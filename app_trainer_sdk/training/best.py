"""Owns which evaluation was the best so far, and when training has gone on long enough without a better one.

Its state is part of every checkpoint, so both survive a resume. This file must not know what is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.plan import Plan


@dataclass
class Best:
    """The best value of one metric.

    Attributes:
        metric: its name among an evaluation's numbers.
        lowest: whether lower is better.
        patience: evaluations in a row without a better one that end training; 0 never ends it.
        wanted: whether the best checkpoint is needed, so that one is saved whenever a better value is seen.
        step: updates made when it was seen, or None.
        value: the value.
        without_better: evaluations since.
    """

    metric: str
    lowest: bool
    patience: int
    wanted: bool
    step: int | None = None
    value: float | None = None
    without_better: int = 0

    @classmethod
    def of(cls, plan: Plan) -> Best:
        """What the plan asks for."""
        asked: dict[str, Any] = {name: knob.effective for name, knob in plan.settings.items()}
        patience = int(asked["early_stopping_patience"])
        wanted = asked["export_from"] == "best" or patience > 0
        return cls(str(asked["best_metric"]), asked["best_is"] == "lowest", patience, wanted)

    def check(self, numbers: Mapping[str, float | None]) -> None:
        """Look at what an evaluation of the validation split reports, before the first update as after others.

        Raises:
            BadJob: the metric is needed and the trainer does not report it, or there is nothing to evaluate.
        """
        if not self.wanted or self.metric in numbers:
            return
        if not numbers:
            raise BadJob(
                "nothing was evaluated on the validation split", expected="rows in it, to find the best by",
                setting="the data, or /hyperparameters/export_from and early_stopping_patience",
            )  # fmt: skip
        raise BadJob(
            f"the evaluation has no {self.metric!r}", expected="one of " + ", ".join(numbers),
            setting="/hyperparameters/best_metric",
        )  # fmt: skip

    def take(self, step: int, numbers: Mapping[str, float | None]) -> bool:
        """Look at one evaluation of the validation split; True when it is the best so far."""
        value = numbers.get(self.metric)
        better = value is not None and (
            self.value is None or (value < self.value if self.lowest else value > self.value)
        )
        self.without_better = 0 if better else self.without_better + 1
        if better:
            self.step, self.value = step, value
        return better

    @property
    def exhausted(self) -> bool:
        """Whether patience has run out."""
        return self.patience > 0 and self.without_better >= self.patience

    def document(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"step": self.step, "value": self.value, "without_better": self.without_better}

    def take_up(self, document: Mapping[str, Any]) -> None:
        """Continue from what a checkpoint kept."""
        self.step, self.value = document["step"], document["value"]
        self.without_better = int(document["without_better"])
