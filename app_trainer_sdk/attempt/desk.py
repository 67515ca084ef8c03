"""Owns what the parts of an attempt share: which job, where, who is told. It must not know what they do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app_trainer_sdk.callbacks.sinks import Sink
from app_trainer_sdk.console import Console
from app_trainer_sdk.job import Job
from app_trainer_sdk.narrator import Narrator
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.stops import Stops
from app_trainer_sdk.time_split import Stopwatch


@dataclass(frozen=True)
class Desk:
    """The tools of one attempt.

    Attributes:
        job: what is asked.
        layout: the job's directory.
        attempt: which start this is.
        console: what a person sees.
        narrator: makes events and lines.
        sink: where events go.
        stops: wishes to stop.
        activities: where the time goes.
    """

    job: Job
    layout: JobDirectory
    attempt: int
    console: Console
    narrator: Narrator
    sink: Sink
    stops: Stops
    activities: Stopwatch

    @property
    def folder(self) -> Path:
        """The attempt's own folder."""
        return self.layout.attempt(self.attempt)
