"""Owns the promises about whole jobs in processes of their own: end, replay, kill and resume, stop.

This file must not know how the jobs are run; ``processes.py`` does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app_trainer_sdk.testing.processes import Life, interrupted_well
from app_trainer_sdk.testing.subject import Subject
from app_trainer_sdk.testing.verdict import BrokenPromise, NotApplicable

#: Fields that tell time, the only ones in which two runs of one job may differ.
TIME_FIELDS = ("seconds", "data_seconds", "data_parts")
LATE_PHASES = ("export", "replay")


def whole_run(subject: Subject) -> str:
    """A small job trains to its end in processes of its own, as ``run`` starts it."""
    life = subject.lives.whole()
    if life.code and life.failure.get("phase") not in LATE_PHASES:
        raise BrokenPromise(f"the job ended with code {life.code}: {life.tail()}", expected="code 0")
    if not life.layout.metrics.exists():
        raise BrokenPromise("the job wrote no metrics", expected="one line for each update")
    return f"{sum(1 for _ in _lines(life.layout.metrics))} updates"


def replayed(subject: Subject) -> str:
    """The artifact of that job, loaded again in a new process, answers the controls as before export."""
    life = subject.lives.whole()
    if life.code:
        raise BrokenPromise(
            life.tail(), expected="the same answers from the folder alone, in another process",
            setting=str(life.failure.get("phase", "replay")),
        )  # fmt: skip
    asked = life.result["replay"]["asked"]
    return f"{asked} controls"


def killed_and_resumed(subject: Subject) -> str:
    """A job that was SIGKILLed and started again ends bit-identical to one that ran in one go."""
    whole, killed = subject.lives.whole(), subject.lives.killed()
    if killed.code:
        raise BrokenPromise(
            f"started again after a SIGKILL, the job ended with code {killed.code}: {killed.tail()}",
            expected="to go on from its checkpoint",
        )  # fmt: skip
    if killed.resumed != killed.step:
        raise BrokenPromise(f"the job went on from update {killed.resumed}", expected=f"update {killed.step}")
    if whole.result.get("stream", {}).get("resume") == "not exact":
        raise NotApplicable("the training data is a stream that cannot go on where it was")
    difference = _line_difference(whole.layout.metrics, killed.layout.metrics) or _line_difference(
        whole.layout.evaluations, killed.layout.evaluations
    )
    if difference:
        raise BrokenPromise(
            f"resumed after update {killed.step}, {difference}", expected="bit-identical results",
            setting="what snapshot holds and begin puts back, or what draws from other generators",
        )  # fmt: skip
    file = _file_difference(whole, killed)
    if file:
        raise BrokenPromise(
            f"resumed after update {killed.step}, equal metrics gave another file {file} of the artifact",
            expected="the same bytes from the same weights",
            setting="what export writes besides them, such as a time, a path or the order of a set",
        )  # fmt: skip
    return f"killed after update {killed.step}"


def stopped(subject: Subject) -> str:
    """SIGTERM ends the job with code 75 and a valid checkpoint."""
    life = subject.lives.stopped()
    if not interrupted_well(life):
        raise BrokenPromise(
            f"after SIGTERM the job ended with code {life.code}: {life.tail()}", expected="code 75, interrupted"
        )
    return f"stopped after update {life.step}"


def _line_difference(one: Path, other: Path) -> str:
    """Where two files of JSON lines first differ, time fields aside."""
    here, there = list(_lines(one)), list(_lines(other))
    for first, second in zip(here, there, strict=False):
        for name in [*first, *second]:
            if name not in TIME_FIELDS and first.get(name) != second.get(name):
                return (
                    f"{name} of step {first.get('step')} in {one.name} is {second.get(name)!r} and not "
                    f"{first.get(name)!r}"
                )
    if len(here) != len(there):
        return f"{one.name} has {len(there)} lines and not {len(here)}"
    return ""


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_text().splitlines() if path.exists() else [])


def _file_difference(one: Life, other: Life) -> str:
    """The first file of the artifacts that differs, or nothing."""
    here, there = _digests(one.layout.artifacts), _digests(other.layout.artifacts)
    for name in sorted(here.keys() | there.keys()):
        if here.get(name) != there.get(name):
            return name
    return ""


def _digests(folder: Path) -> dict[str, str]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}
