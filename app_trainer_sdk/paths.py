"""Owns where things lie: the job's directory, one attempt's, and the cache. It must not know their contents."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from app_trainer_sdk.errors import BadJob

PREFIX = "APP_TRAINER_"
#: Every reader of JSON has whole numbers up to here.
MOST_ATTEMPTS = (1 << 53) - 1


@dataclass(frozen=True)
class JobDirectory:
    """The layout of a job: its state is shared by all attempts, and only one start's own lies below it."""

    root: Path

    @property
    def job(self) -> Path:
        """The job as accepted."""
        return self.root / "job.json"

    @property
    def plan(self) -> Path:
        """The plan."""
        return self.root / "plan.json"

    @property
    def metrics(self) -> Path:
        """One line for each update."""
        return self.root / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        """One line for each evaluation."""
        return self.root / "evaluations.jsonl"

    @property
    def phases(self) -> Path:
        """One row for each phase."""
        return self.root / "phases.jsonl"

    @property
    def result(self) -> Path:
        """How the job ended."""
        return self.root / "result.json"

    @property
    def report(self) -> Path:
        """The same for people."""
        return self.root / "report.md"

    @property
    def manifest(self) -> Path:
        """What the run was, to tell it, find it and make it again."""
        return self.root / "manifest.json"

    @property
    def pilot(self) -> Path:
        """What the job's pilot measured."""
        return self.root / "pilot" / "pilot.json"

    @property
    def inputs(self) -> Path:
        """Downloaded inputs."""
        return self.root / "inputs"

    @property
    def checkpoints(self) -> Path:
        """Checkpoints."""
        return self.root / "checkpoints"

    @property
    def artifacts(self) -> Path:
        """What is handed over."""
        return self.root / "artifacts"

    def attempt(self, number: int) -> Path:
        """What belongs to one start."""
        return self.root / "attempts" / str(number)

    def next_attempt(self) -> int:
        """``APP_TRAINER_ATTEMPT`` where the control plane counts, else one more than the last here.

        Raises:
            BadJob: the variable is no number.
        """
        if (given := attempt_from_environment()) is not None:
            return given
        folder = self.root / "attempts"
        numbers = (
            [int(each.name) for each in folder.iterdir() if each.name.isdecimal()] if folder.is_dir() else []
        )
        return max(numbers, default=0) + 1


def cache_directory() -> Path:
    """``APP_TRAINER_CACHE_DIR``, else ``/cache`` in a container, else the user's cache.

    Raises:
        BadJob: it would be below a home, and there is none.
    """
    try:
        return _cache_directory()
    except RuntimeError:  # pathlib's word for a user without a home
        raise BadJob(
            "no home folder to keep the cache in", expected="a folder", setting=PREFIX + "CACHE_DIR"
        ) from None


def _cache_directory() -> Path:
    given = os.environ.get(PREFIX + "CACHE_DIR")
    if given:
        return Path(given).expanduser()
    if os.access("/cache", os.W_OK):
        return Path("/cache")
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "app_trainer_sdk"


def attempt_from_environment() -> int | None:
    """``APP_TRAINER_ATTEMPT``, the fencing token; None where the control plane does not count.

    Raises:
        BadJob: it is no number. Another number than the one that was meant would fence the wrong start.
    """
    name = PREFIX + "ATTEMPT"
    given = os.environ.get(name, "").strip()
    if not given:
        return None
    if not (given.isascii() and given.isdecimal() and 0 < int(given) <= MOST_ATTEMPTS):
        raise BadJob(f"{name} is {given!r}", expected="a whole number from 1 on", setting=name)
    return int(given)


def number_from_environment(name: str, default: float, *, zero: bool = True) -> float:
    """A number from ``APP_TRAINER_<name>``, the default where there is nothing.

    Raises:
        BadJob: what stands there is no number, or below 0, or 0 where ``zero`` says that it means nothing.
    """
    given = os.environ.get(PREFIX + name, "").strip()
    if not given:
        return default
    with contextlib.suppress(ValueError):
        if (number := float(given)) > 0 or (zero and number == 0):
            return number
    expected = "a number from 0 on" if zero else "a number above 0"
    raise BadJob(f"{PREFIX}{name} is {given!r}", expected=expected, setting=PREFIX + name)
