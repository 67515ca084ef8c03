"""Owns what a pilot's measurements say to the next plan: memory, seconds of an update, whether compiling pays.

Pure functions over ``pilot.json``; each answer says where it comes from. This file must not know how anything
was measured or predicted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from app_trainer_sdk.arguments import existing_file
from app_trainer_sdk.choice import KNOBS, Candidate
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.errors import BadJob, Problem
from app_trainer_sdk.files import read_json
from app_trainer_sdk.gpus import CARDS, Card
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.job import Job, check_job
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.pilot_verdict import PILOT_SCHEMA
from app_trainer_sdk.tradeoffs import CompileTimes
from app_trainer_sdk.values import JSON

#: Settings that move neither memory nor the time of an update: how long, how often, how fast it learns.
LOOSE = frozenset({
    "updates", "epochs", "warmup_updates", "seed", "learning_rate", "final_learning_rate_ratio", "schedule",
    "evaluate_every", "checkpoint_every", "checkpoints_kept", "best_metric", "best_is", "export_from",
    "early_stopping_patience", "nonfinite_limit", "memory_release", "dataloader_workers",
})  # fmt: skip
#: Two tellings of one card's memory differ by this share at most.
MEMORY_TOLERANCE = 0.06


@dataclass(frozen=True)
class Measured:
    """One pilot.

    Attributes:
        source: the file.
        device: ``kind``, ``name`` and ``memory_bytes`` of where it ran.
        settings: every setting as it was in effect.
        replicas: ranks.
        measured_bytes: most that the allocator had handed out at once in the longest update; None when nobody
            predicted it.
        predicted_bytes: what was predicted for that, without rounding.
        rounding_bytes: predicted for the allocator's rounding.
        update_seconds: of an update on the data.
        updates: those that the run would have made.
        compile_times: what compiling takes and gives; None when that was not measured.
        data_seconds: of ``update_seconds``, waiting for data.
    """

    source: str
    device: Mapping[str, Any]
    settings: Mapping[str, JSON]
    replicas: int
    measured_bytes: int | None
    predicted_bytes: int
    rounding_bytes: int
    update_seconds: float
    updates: int
    compile_times: Mapping[str, float] | None = None
    data_seconds: float = 0.0

    @classmethod
    def of(cls, document: Mapping[str, Any], source: str) -> Self:
        """What ``pilot.json`` holds."""
        predicted, compiled = document["predicted"] or {}, document.get("compile") or {}
        known = "measured_bytes" in predicted
        times = ("compile_seconds", "eager_seconds", "compiled_seconds")
        return cls(
            source=source, device={name: document["device"][name] for name in ("kind", "name", "memory_bytes")},
            settings=document["settings"], replicas=document["run"].get("replicas", 1),
            measured_bytes=predicted["measured_bytes"] if known else None,
            predicted_bytes=predicted["rehearsed_bytes"] if known else 0,
            rounding_bytes=predicted["rounding_bytes"] if known else 0,
            update_seconds=document["updates"]["seconds"],
            data_seconds=document["updates"].get("data_seconds", 0.0),
            updates=document["run"]["updates"],
            compile_times={name: compiled[name] for name in times} if times[0] in compiled else None,
        )  # fmt: skip

    def differing(self, settings: Hyperparameters) -> list[str]:
        """Settings that have a value now and had another one in the pilot, those that do not matter aside."""
        now = settings.model_dump(mode="json")
        return [
            name for name, value in now.items()
            if name not in LOOSE and value not in ("auto", self.settings.get(name, _MISSING))
        ]  # fmt: skip

    def ran_on(self, card: Card) -> bool:
        """Whether ``card`` is the kind it ran on: by the number in its name, and by its memory."""
        near = abs(card.memory_bytes - self.device["memory_bytes"]) <= MEMORY_TOLERANCE * card.memory_bytes
        return (
            near and self.device["kind"] != "cpu" and _number_in(card.title) == _number_in(self.device["name"])
        )

    def factor(self, card: Card) -> float | None:
        """Measured memory against predicted, workspace of libraries included; None where that says nothing."""
        if self.measured_bytes is None or self.device["kind"] == "cpu":
            return None
        there = next((each for each in CARDS if self.ran_on(each)), card)
        return self.measured_bytes / (self.predicted_bytes + self.rounding_bytes + there.library_bytes)

    def grade(self, card: Card, settings: Hyperparameters, replicas: int, *, exact: bool = True) -> str:
        """How well a memory is known that was predicted and corrected by :meth:`factor`.

        ``exact`` says whether it is the memory of what the pilot measured, the longest update.
        """
        where = f"the pilot on {self.device['name']} ({self.source})"
        if exact and self.ran_on(card) and replicas == self.replicas and not self.differing(settings):
            return f"measured by {where}; context and headroom declared"
        return (
            f"predicted, CPU kernels, times {self.factor(card):.3f} as measured by {where}; "
            "context and headroom declared"
        )

    def seconds(
        self, card: Card, settings: Hyperparameters, candidate: Candidate, replicas: int
    ) -> tuple[float, str] | None:
        """Seconds of an update on ``card`` made as ``candidate``, and how they are known; None elsewhere."""
        open_now = [name for name in self.differing(settings) if name not in KNOBS]
        if not self.ran_on(card) or replicas != self.replicas or open_now:
            return None
        piloted = Candidate(**{name: self.settings[name] for name in KNOBS})  # type: ignore[arg-type]
        where = f"the pilot on {self.device['name']}"
        if candidate == piloted:
            return self.update_seconds, f"measured by {where}"
        scale = candidate.relative_time / piloted.relative_time
        return (
            self.update_seconds * scale,
            f"measured by {where}, times a declared {scale:.2f} for the settings",
        )

    def computing(
        self, kind: str, name: str, settings: Hyperparameters, replicas: int
    ) -> tuple[float, str] | None:
        """Seconds of an update without its wait for data, and who measured them; None elsewhere.

        On a card a part of the wait lies beside computing, so an update computes at least so long.
        """
        here = self.device["kind"] == kind and _number_in(self.device["name"]) == _number_in(name)
        if not here or replicas != self.replicas or self.differing(settings):
            return None
        seconds = max(0.0, self.update_seconds - self.data_seconds)
        return seconds, f"measured by the pilot on {self.device['name']}"

    def length(self, settings: Hyperparameters) -> int | None:
        """Updates of a run with this pilot's data; None where another length is asked for."""
        same = settings.updates == "auto" and settings.epochs in ("auto", self.settings.get("epochs"))
        return self.updates if same and not self.differing(settings) else None

    def compiling(self, kind: str, name: str, settings: Hyperparameters) -> CompileTimes | None:
        """Compile times for a device of the same kind and name, where nothing else was asked than piloted."""
        here = self.device["kind"] == kind and _number_in(self.device["name"]) == _number_in(name)
        if self.compile_times is None or not here or set(self.differing(settings)) - {"torch_compile"}:
            return None
        return CompileTimes(**self.compile_times, source=f"the pilot ({self.source})")


def read_measured(path: Path, job: Job, trainer: type[Trainer]) -> tuple[Measured | None, str]:
    """What a pilot of the same job measured, or None and why it is of no use.

    Args:
        path: a ``pilot.json``; one that is not there is no reason.
        job: the job.
        trainer: its trainer.
    """
    try:
        document: Any = read_json(path)
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"{path} cannot be read: {error}"
    _, row, method = check_job(job, trainer)
    ours = {
        "trainer": trainer.name, "trainer_version": trainer.version, "model": row.name, "method": method,
    }  # fmt: skip
    try:
        if document["schema"] != PILOT_SCHEMA:
            return None, f"{path} is a {document['schema']}, not a {PILOT_SCHEMA}"
        theirs = {name: document["run"][name] for name in ours}
        if theirs != ours:
            found = next(name for name in ours if theirs[name] != ours[name])
            return None, f"{path} is a pilot with {found} {theirs[found]!r}, not {ours[found]!r}"
        return Measured.of(document, str(path)), ""
    except (KeyError, TypeError) as error:
        return None, f"{path} is no whole pilot: {type(error).__name__}: {error}"


def find_measured(
    named: Path | None, directory: Path | None, job: Job, trainer: type[Trainer]
) -> tuple[Measured | None, str]:
    """What a pilot measured that somebody named, else the one in the job's directory, else nothing.

    Args:
        named: a ``pilot.json``.
        directory: the job's directory.
        job: the job.
        trainer: its trainer.

    Returns:
        the measurements, or None and why those in the directory are of no use.

    Raises:
        BadJob: the file that was named is not there or of no use.
    """
    path = named or (JobDirectory(directory).pilot if directory is not None else None)
    if path is None:
        return None, ""
    if named is not None:
        existing_file(named, "pilot.json of this job", "--pilot")
    measured, why = read_measured(path, job, trainer)
    if measured is None and named is not None:
        wrong = Problem("--pilot", why, "pilot.json of this job")
        raise BadJob("the pilot cannot be used:", problems=[wrong])
    return measured, why


_MISSING = object()


def _number_in(name: str) -> str:
    """The word with the number, which tells kinds of cards apart: ``L4``, ``A100``, ``4090``, ``MI300X``."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return next((word for word in words if re.search(r"\d", word)), name.lower())
