"""Owns the plan of one job on any number of cards: the fastest settings that fit each, from predictions.

This file must not know how memory is predicted, how a plan is asked for, nor how it is shown.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from app_trainer_sdk.choice import (
    KNOBS,
    SPLIT,
    Candidate,
    Considered,
    changes,
    choose,
    freed,
    list_candidates,
)
from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.gpus import CARDS, Card
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.job import Job
from app_trainer_sdk.plan import Effective, Plan
from app_trainer_sdk.planning.measured import Measured
from app_trainer_sdk.planning.process import GRADE
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.training.assumed import AssumedRuns
from app_trainer_sdk.training.card_memory import memory_terms, sharding
from app_trainer_sdk.training.dry_run import Size, build_shapes
from app_trainer_sdk.training.phase_rehearsal import shapes_of
from app_trainer_sdk.training.predict import Prediction, predict
from app_trainer_sdk.training.ways import MARGIN, Ways
from app_trainer_sdk.values import JSON

#: 8-bit state is not considered where it would save less than this share of the weights. Not of the card: a
#: larger one could then do less than a smaller one.
WORTH_SHRINKING = 0.01
OTHER_KNOBS = ("torch_compile", "dataloader_workers")
#: Phases that a pilot goes through with the largest batch.
PILOTED = ("load", "forward", "backward", "step", "evaluate")


class Planner:
    """Plans one job on any number of cards; what is predicted for one serves the others.

    Args:
        job: the job, valid by itself.
        replicas: data-parallel ranks, one card each.
        eight_bit_problem: why 8-bit state cannot be had; empty while nothing is known against it.
        measured: what a pilot of the job measured, if there was one.

    Raises:
        BadJob: the job asks what its trainer does not have, or the trainer's memory cannot be predicted.
    """

    def __init__(
        self, job: Job, *, replicas: int = 1, eight_bit_problem: str = "", measured: Measured | None = None
    ) -> None:
        self._measured = measured
        self._eight_bit_problem = eight_bit_problem
        self._replicas = replicas
        self._trainer = _supervised(find_trainer(job.trainer)())
        self._runs = AssumedRuns(
            job, self._trainer, replicas=replicas, measured=measured, eight_bit_problem=eight_bit_problem
        )
        self._asked = self._runs.asked

    @functools.cached_property
    def size(self) -> Size:
        """Of the whole model."""
        return Size.of(build_shapes(self._trainer, self._runs.run(self._plan)))

    @functools.cached_property
    def _plan(self) -> Plan:
        """On any card: none moves a byte of a way whose knobs are decided."""
        return self._runs.plan(CARDS[-1], self._asked)

    @functools.cached_property
    def _ways(self) -> Ways:
        return Ways(self._trainer, self.size, functools.partial(self._runs.run, self._plan))

    def facts(self) -> dict[str, Any]:
        """What does not depend on the card."""
        plan = self._plan
        return {
            "trainer": plan.trainer, "trainer_version": plan.trainer_version, "model": plan.model,
            "method": plan.method, "parameters": self.size.parameters,
            "trained_parameters": self.size.trained, "blocks": self.size.blocks, "replicas": self._replicas,
            "global_batch": plan.examples_per_update, "not_predicted": self._not_predicted(),
        }  # fmt: skip

    def _not_predicted(self) -> list[str]:
        told = shapes_of(self._trainer, self._runs.run(self._plan))
        return [name for name in self._trainer.preparation if name not in told]

    def on(self, card: Card) -> dict[str, Any]:
        """The plan for one card."""
        plan = self._runs.plan(card, self._asked)
        chosen, considered = self._choose(card, self._asked, plan)
        best = chosen or self._leanest(card, self._asked, plan)
        prediction = self._ways.with_residual(best)
        answer = {
            "card": dataclasses.asdict(card), "fits": chosen is not None,
            "precision": best.mixed_precision, "chosen": chosen.knobs() if chosen else None,
            "relative_time": round(best.relative_time, 4) if chosen else None,
            "memory": self._terms(prediction, card), "prediction": prediction.document(),
            **self._grades(card, plan, best, piloted=prediction.at in PILOTED),
            "considered": [self._told(each) for each in considered],
            "settings": self._settings(plan, best, fits=chosen is not None),
        }  # fmt: skip
        if chosen is None:
            answer["sharding"] = sharding(prediction, self._terms(prediction, card))
            answer["nearest"] = self._nearest(card)
        return answer

    def refused(self, card: Card, why: str) -> dict[str, Any]:
        """The plan for a card without the arithmetic that was asked for: its memory as if it had it."""
        told = self.on(dataclasses.replace(card, bf16=True))
        return {
            **told, "card": dataclasses.asdict(card), "fits": False, "chosen": None, "relative_time": None,
            "considered": [], "refused": why, "sharding": None,
            "nearest": {"settings": {"mixed_precision": "auto"}, "card": None},
        }  # fmt: skip

    def inference(self, card: Card) -> dict[str, Any]:
        """The terms of one forward pass over the longest row with what training makes.

        What the phases before training build lies beside it: a head needs its backbone to answer.
        """
        plan = self._runs.plan(card, self._asked)
        way = Candidate(1, 1, False, False, plan.precision)
        prediction = predict(self._trainer, self._runs.run(plan, way), kind="cuda", size=self.size, updates=0)
        phases = self._ways.preparation(way)
        beside = max(phases, key=lambda name: phases[name].total, default="")
        memory = self._terms(prediction.beside(phases[beside]) if beside else prediction, card)
        return {"precision": plan.precision, "beside": beside, "memory": memory}

    def _choose(
        self, card: Card, settings: Hyperparameters, plan: Plan
    ) -> tuple[Candidate | None, list[Considered]]:
        def needs(candidate: Candidate) -> int:
            estimated = self._ways.estimate(candidate)
            if estimated is not None:
                needed = self._terms(estimated, card)["needed_bytes"]
                if self._ways.is_known(candidate) or needed > card.memory_bytes * (1 + MARGIN):
                    return needed
            return self._needed(candidate, card)

        return choose(self._candidates(card, settings, plan), needs, card.memory_bytes)

    def _candidates(self, card: Card, settings: Hyperparameters, plan: Plan) -> list[Candidate]:
        saves = 6 * self.size.trained >= WORTH_SHRINKING * 4 * self.size.parameters
        return list_candidates(
            settings, plan.examples_per_update // self._replicas, minimum_rows=self._trainer.minimum_rows,
            coupled_rows=self._trainer.coupled_rows, can_recompute=self.size.blocks > 0,
            can_shrink_state=saves and settings.optimizer == "adamw" and not self._eight_bit_problem,
            precision=plan.precision,
        )  # fmt: skip

    def _leanest(self, card: Card, settings: Hyperparameters, plan: Plan) -> Candidate:
        """What comes nearest to fitting."""
        candidates = self._candidates(card, settings, plan)
        ways = [
            min(those, key=lambda each: each.leanness)
            for whole in (False, True)
            if (those := [each for each in candidates if each.is_whole == whole])
        ]
        return min(ways, key=lambda each: self._needed(each, card))

    def nearest(self, card: Card) -> dict[str, Any]:
        """What fits a card on which the job's own settings ran out of memory, whatever was predicted of them.

        Returns:
            ``settings`` to change (None where none would do), ``needed_bytes`` with them or at the leanest,
            ``available_bytes``, and ``card``, the smallest of the catalog that is larger and fits.
        """
        own = self._leanest(card, self._asked, self._runs.plan(card, self._asked))
        least = dataclasses.replace(card, memory_bytes=min(card.memory_bytes, self._needed(own, card) - 1))
        for knobs in (KNOBS[len(SPLIT) :], KNOBS):  # the split stays where that is enough
            settings = freed(self._asked, knobs)
            plan = self._runs.plan(card, settings)
            chosen, _ = self._choose(least, settings, plan)
            if chosen:
                break
        best = chosen or self._leanest(card, settings, plan)
        return {
            "settings": changes(self._asked, chosen) if chosen else None,
            "needed_bytes": self._needed(best, card),
            "available_bytes": card.memory_bytes,
            "card": self._larger(card),
        }

    def _nearest(self, card: Card) -> dict[str, Any]:
        """Settings that would fit this card, and the smallest card that would fit the job's own."""
        open_settings, chosen = freed(self._asked), None
        if open_settings != self._asked:
            chosen, _ = self._choose(card, open_settings, self._runs.plan(card, open_settings))
        return {"settings": changes(self._asked, chosen) if chosen else None, "card": self._larger(card)}

    def _larger(self, card: Card) -> str | None:
        """The smallest card of the catalog that is larger and fits the job's own settings."""
        larger = sorted(CARDS, key=lambda each: each.memory_bytes)
        fitting = (each for each in larger if each.memory_bytes > card.memory_bytes and self._can_fit(each))
        return next((each.name for each in fitting), None)

    def _can_fit(self, card: Card) -> bool:
        """Whether the leanest way fits a card, which must have the arithmetic that was asked for."""
        if self._asked.mixed_precision == "bf16" and not card.bf16:
            return False
        way = self._leanest(card, self._asked, self._runs.plan(card, self._asked))
        return self._needed(way, card) <= card.memory_bytes

    def _terms(self, prediction: Prediction, card: Card) -> dict[str, int]:
        factor = self._measured.factor(card) if self._measured is not None else None
        return memory_terms(prediction, card, replicas=self._replicas, factor=factor)

    def _needed(self, way: Candidate, card: Card) -> int:
        """Bytes that a card has to hold, from a rehearsal of this very way."""
        return self._terms(self._ways.predict(way), card)["needed_bytes"]

    def _told(self, considered: Considered) -> dict[str, Any]:
        candidate, bound = considered.candidate, considered.at_least
        return {
            **candidate.knobs(), "relative_time": round(candidate.relative_time, 4),
            "needed_bytes": considered.needed, "verdict": considered.verdict, "at_least": bound,
            "estimated": not bound and not self._ways.is_known(candidate),
        }  # fmt: skip

    def _grades(self, card: Card, plan: Plan, candidate: Candidate, *, piloted: bool) -> dict[str, Any]:
        """How memory is known, and what an update takes, where a pilot says something of it.

        ``piloted`` says whether the peak is in what a pilot measures at its largest.
        """
        measured, replicas = self._measured, self._replicas
        settings = self._runs.run(plan, candidate).settings
        if measured is None or measured.factor(card) is None:
            return {"grade": GRADE, "update_seconds": None}
        told = measured.seconds(card, settings, candidate, replicas)
        seconds = None if told is None else {"seconds": round(told[0], 6), "grade": told[1]}
        grade = measured.grade(card, settings, replicas, exact=piloted)
        return {"grade": grade, "update_seconds": seconds}

    def _settings(self, plan: Plan, candidate: Candidate, *, fits: bool) -> dict[str, Any]:
        """Every knob of speed and memory: asked, effective, why."""
        told = {}
        knobs = candidate.knobs()
        for name in ("global_batch", *knobs, *OTHER_KNOBS):
            knob = plan.settings[name]
            if name in knobs and knob.requested == "auto":
                why = _why(knobs[name], knob) if fits else "the leanest, which does not fit"
                knob = dataclasses.replace(knob, effective=knobs[name], why=why)
            told[name] = dataclasses.asdict(knob)
        return told


def _why(value: JSON, knob: Effective) -> str:
    if isinstance(value, str):
        return knob.why if value == knob.effective else "nothing faster fits, and it keeps no copies in bf16"
    if isinstance(value, bool):
        return "saves what would not fit otherwise" if value else "costs time, and it fits without"
    return "the fastest split of the update that fits"


def _supervised(trainer: Any) -> SupervisedTrainer:
    if not isinstance(trainer, SupervisedTrainer):
        raise BadJob(
            f"the trainer {trainer.name} has a loop of its own, whose memory cannot be predicted",
            expected="a SupervisedTrainer", setting="/trainer",
        )  # fmt: skip
    return trainer
