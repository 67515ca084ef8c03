"""Owns the plan of one job on any number of cards: the fastest settings that fit each, from predictions.

This file must not know how memory is predicted, how a plan is asked for, nor how it is shown.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch

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
from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.gpus import CARDS, Card
from app_trainer_sdk.handle import Run
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.job import Job, check_job
from app_trainer_sdk.plan import DeviceFacts, Effective, Plan
from app_trainer_sdk.planning.measured import Measured
from app_trainer_sdk.planning.process import GRADE
from app_trainer_sdk.planning.resolve import resolve_plan
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.training.device import DTYPES
from app_trainer_sdk.training.dry_run import Size, build_shapes
from app_trainer_sdk.training.phase_rehearsal import shapes_of
from app_trainer_sdk.training.predict import Prediction, predict
from app_trainer_sdk.training.ways import MARGIN, Ways
from app_trainer_sdk.values import JSON

#: A run's length moves no memory; a plan without data assumes one.
UPDATES = 1000
#: Processors for each rank, and shared memory, that a rented machine is assumed to have.
CORES, SHARED_BYTES = 8, 16 << 30
#: 8-bit state is not considered where it would save less than this share of the weights. Not of the card: a
#: larger one could then do less than a smaller one.
WORTH_SHRINKING = 0.01
OTHER_KNOBS = ("torch_compile", "dataloader_workers")
#: Phases that a pilot goes through with the largest batch.
PILOTED = ("load", "forward", "backward", "step", "evaluate")
STATE = ("parameters", "gradients", "optimizer_state", "average")


class Planner:
    """Plans one job on any number of cards; what is predicted for one serves the others.

    Args:
        job: the job, valid by itself.
        replicas: data-parallel ranks, one card each.
        eight_bit_problem: why 8-bit state cannot be had; empty while nothing is known against it.
        measured: what a pilot of the job measured, if there was one.
        beside: another process to rehearse in.

    Raises:
        BadJob: the job asks what its trainer does not have, or the trainer's memory cannot be predicted.
    """

    def __init__(
        self, job: Job, *, replicas: int = 1, eight_bit_problem: str = "", measured: Measured | None = None,
        beside: ProcessPoolExecutor | None = None,
    ) -> None:  # fmt: skip
        self._job = job
        self._beside = beside
        self._measured = measured
        self._eight_bit_problem = eight_bit_problem
        self._replicas = replicas
        self._trainer = _supervised(find_trainer(job.trainer)())
        self._asked, self._row, self._method = check_job(job, type(self._trainer))

    @functools.cached_property
    def size(self) -> Size:
        """Of the whole model."""
        return Size.of(build_shapes(self._trainer, self._run(self._plan(CARDS[-1], self._asked))))

    @functools.cached_property
    def _ways(self) -> Ways:
        plan = self._plan(CARDS[-1], self._asked)  # cards move no byte of a way whose knobs are decided
        return Ways(self._trainer, self.size, functools.partial(self._run, plan), self._beside)

    def facts(self) -> dict[str, Any]:
        """What does not depend on the card."""
        plan = self._plan(CARDS[-1], self._asked)
        return {
            "trainer": plan.trainer, "trainer_version": plan.trainer_version, "model": plan.model,
            "method": plan.method, "parameters": self.size.parameters,
            "trained_parameters": self.size.trained, "blocks": self.size.blocks, "replicas": self._replicas,
            "global_batch": plan.examples_per_update, "not_predicted": self._not_predicted(plan),
        }  # fmt: skip

    def _not_predicted(self, plan: Plan) -> list[str]:
        told = shapes_of(self._trainer, self._run(plan))
        return [name for name in self._trainer.preparation if name not in told]

    def on(self, card: Card) -> dict[str, Any]:
        """The plan for one card."""
        plan = self._plan(card, self._asked)
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
            answer["sharding"] = _sharding(prediction, self._terms(prediction, card))
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
        plan = self._plan(card, self._asked)
        way = Candidate(1, 1, False, False, plan.precision)
        prediction = predict(self._trainer, self._run(plan, way), kind="cuda", size=self.size, updates=0)
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
            return self._terms(self._ways.predict(candidate), card)["needed_bytes"]

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
        return min(ways, key=lambda each: self._terms(self._ways.predict(each), card)["needed_bytes"])

    def nearest(self, card: Card) -> dict[str, Any]:
        """What fits a card on which the job's own settings ran out of memory, whatever was predicted of them.

        Returns:
            ``settings`` to change (None where none would do), ``needed_bytes`` with them or at the leanest,
            ``available_bytes``, and ``card``, the smallest of the catalog that is larger and fits.
        """
        own = self._leanest(card, self._asked, self._plan(card, self._asked))
        failed = self._terms(self._ways.predict(own), card)["needed_bytes"]
        least = dataclasses.replace(card, memory_bytes=min(card.memory_bytes, failed - 1))
        for knobs in (KNOBS[len(SPLIT) :], KNOBS):  # the split stays where that is enough
            settings = freed(self._asked, knobs)
            plan = self._plan(card, settings)
            chosen, _ = self._choose(least, settings, plan)
            if chosen:
                break
        best = chosen or self._leanest(card, settings, plan)
        larger = (each for each in sorted(CARDS, key=_size_of) if each.memory_bytes > card.memory_bytes)
        return {
            "settings": changes(self._asked, chosen) if chosen else None,
            "needed_bytes": self._terms(self._ways.predict(best), card)["needed_bytes"],
            "available_bytes": card.memory_bytes,
            "card": next((each.name for each in larger if self._can_fit(each)), None),
        }

    def _nearest(self, card: Card) -> dict[str, Any]:
        """Settings that would fit this card, and the smallest card that would fit the job's own."""
        open_settings, chosen = freed(self._asked), None
        if open_settings != self._asked:
            chosen, _ = self._choose(card, open_settings, self._plan(card, open_settings))
        larger = sorted((each for each in CARDS if each.memory_bytes > card.memory_bytes), key=_size_of)
        return {
            "settings": changes(self._asked, chosen) if chosen else None,
            "card": next((each.name for each in larger if self._can_fit(each)), None),
        }

    def _can_fit(self, card: Card) -> bool:
        """Whether the leanest way fits a card, which must have the arithmetic that was asked for."""
        if self._asked.mixed_precision == "bf16" and not card.bf16:
            return False
        way = self._leanest(card, self._asked, self._plan(card, self._asked))
        return self._terms(self._ways.predict(way), card)["needed_bytes"] <= card.memory_bytes

    def _plan(self, card: Card, settings: Hyperparameters) -> Plan:
        device = DeviceFacts(
            "cuda", card.title, bf16=card.bf16, cores=CORES * self._replicas, memory_bytes=card.memory_bytes,
            cores_why=f"{CORES} processors for each rank, assumed", shared_memory_bytes=SHARED_BYTES,
            eight_bit_problem=self._eight_bit_problem,
        )  # fmt: skip
        measured = self._measured
        updates = (measured.length(settings) if measured else None) or UPDATES
        length = {"updates": updates, "epochs": "auto"} if settings.updates == "auto" else {}
        trainer = self._trainer
        return resolve_plan(
            settings.model_copy(update=length), trainer=trainer.name, trainer_version=trainer.version,
            model=self._row.name, method=self._method, device=device, replicas=self._replicas,
            data=DataFacts(None, minimum_rows=trainer.minimum_rows, coupled_rows=trainer.coupled_rows),
            asked=self._job.hyperparameters, parameters=self._row.parameters,
            compile_times=measured.compiling("cuda", card.title, settings) if measured else None,
        )  # fmt: skip

    def _run(self, plan: Plan, candidate: Candidate | None = None) -> Run:
        settings = plan.resolved(self._asked)
        if candidate is not None:
            settings = settings.model_copy(update=candidate.knobs())
        precision = plan.precision if candidate is None else candidate.mixed_precision
        nowhere = Path(tempfile.gettempdir())
        return Run(
            settings=settings, model=self._row, method=self._method, directory=nowhere, cache=nowhere,
            device=torch.device("cpu"), dtype=DTYPES[precision],
        )  # fmt: skip

    def _terms(self, prediction: Prediction, card: Card) -> dict[str, int]:
        """What the card has to hold, term by term: what was predicted is never mixed with what was declared."""
        peak, rounding = prediction.peak.total, prediction.peak.rounding
        step = prediction.phases.get("step")
        # DDP keeps a second copy of the gradients, in buckets that are sent as one.
        exchange = step.by_owner["gradients"] if step is not None and self._replicas > 1 else 0
        factor = self._measured.factor(card) if self._measured is not None else None
        held = peak + rounding + card.library_bytes
        correction = 0 if factor is None else round(held * (factor - 1))
        headroom = card.headroom(peak + exchange + correction)
        needed = held + exchange + correction + card.context_bytes + headroom
        return {
            "peak_bytes": peak, "rounding_bytes": rounding, "exchange_bytes": exchange,
            "library_bytes": card.library_bytes, "correction_bytes": correction,
            "context_bytes": card.context_bytes,
            "headroom_bytes": headroom, "needed_bytes": needed, "available_bytes": card.memory_bytes,
            "left_bytes": card.memory_bytes - needed,
        }  # fmt: skip

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
        settings = self._run(plan, candidate).settings
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


def _size_of(card: Card) -> int:
    return card.memory_bytes


def _sharding(prediction: Prediction, terms: Mapping[str, int]) -> dict[str, Any]:
    """How many cards would have to share weights, gradients and optimizer state; None where no number helps."""
    step = prediction.phases["step"].by_owner
    state = sum(step[owner] for owner in STATE)
    left = terms["available_bytes"] - max(0, terms["needed_bytes"] - state)
    return {"state_bytes": state, "cards": math.ceil(state / left) if left > 0 else None}
