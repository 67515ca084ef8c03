"""Owns ``start.json``: what the supervisor found out and a rank needs to begin. Torch-free, read by both.

It must not know what is made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from app_trainer_sdk.files import read_json, write_json
from app_trainer_sdk.job import Job
from app_trainer_sdk.paths import JobDirectory

START = "start.json"
#: What the first rank told of its software and device, beside it.
ENVIRONMENT = "environment.json"


@dataclass(frozen=True)
class Start:
    """One start of a job.

    Attributes:
        directory: the job's directory.
        attempt: its number.
        cache: the shared cache.
        job: the job document, paths resolved.
        inputs: local path of each input.
        weights: local path of each set of weights.
        weights_identity: what identifies their content.
        ranks: processes that train.
        allow_changes: fields in which this start may differ from its checkpoint.
        measured: what a pilot of the job measured; empty where there was none.
        fit: knobs chosen for the card that is there, and how; empty on a machine without one.
    """

    directory: str
    attempt: int
    cache: str
    job: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)
    weights_identity: Mapping[str, str] = field(default_factory=dict)
    ranks: int = 1
    allow_changes: list[str] = field(default_factory=list)
    fit: Mapping[str, Any] = field(default_factory=dict)
    measured: Mapping[str, Any] = field(default_factory=dict)

    def save(self) -> Path:
        """Write it where the ranks of this attempt look."""
        path = self.layout.attempt(self.attempt) / START
        write_json(path, asdict(self), lasting=False)
        return path

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read it."""
        return cls(**read_json(path))

    @property
    def layout(self) -> JobDirectory:
        """The job's directory with its layout."""
        return JobDirectory(Path(self.directory))

    def read_job(self) -> Job:
        """The job as a value."""
        return Job.model_validate(self.job)
