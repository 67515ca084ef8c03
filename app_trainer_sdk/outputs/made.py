"""Owns finding what earlier attempts made and could not hand over: their artifacts, and their word of them.

It must not know how artifacts are sent, nor how a run goes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.files import read_json, sha256_tree
from app_trainer_sdk.job import Job, what_is_asked
from app_trainer_sdk.outputs.handover import HEAD
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.start import START

#: Of an earlier result, what the next one says for itself.
OWN = (*HEAD, "schema", "job_id", "attempt", "sdk", "stop", "stored")
#: Of a job, what has no say in what is made.
BESIDE = ("callbacks", "outputs", "job_id")


def made_before(layout: JobDirectory) -> dict[str, Any]:
    """What the last attempt that made artifacts said of itself; they must still be what it said.

    Raises:
        BadJob: nothing was made, or it is other bytes now.
    """
    for _, path, result in _words(layout):
        if result.get("outputs"):
            _refuse_changed(layout, path, result)
            return _facts(result)
    raise BadJob(
        f"nothing to upload in {layout.root}", expected="artifacts of a job that was trained",
        setting="app-trainer run, to finish it",
    )  # fmt: skip


def only_unsent(layout: JobDirectory, job: Job) -> dict[str, Any] | None:
    """The same, where sending is all that is left of ``job``; None where something has to be made.

    So it is when the last attempt that began to train made the artifacts of this very job, and they are whole.
    """
    if not layout.job.is_file() or _work(read_json(layout.job)) != _work(job.document()):
        return None
    for folder, path, result in _words(layout):
        if result.get("outputs"):
            with contextlib.suppress(BadJob):
                _refuse_changed(layout, path, result)
                return _facts(result)
        if result.get("outputs") or (folder / START).is_file():
            break
    return None


def _words(layout: JobDirectory) -> Iterator[tuple[Path, Path, Mapping[str, Any]]]:
    """Each attempt's folder, the newest first, and what it said of itself in which file."""
    numbers = [int(each.name) for each in (layout.root / "attempts").glob("[0-9]*") if each.name.isdecimal()]
    newest = _read(layout.result)
    for number in sorted(numbers, reverse=True):
        folder = layout.attempt(number)
        if newest.get("attempt") == number:
            yield folder, layout.result, newest
            continue
        # Who was killed while uploading has told no result; the rank's own word of what it made is there.
        said = [folder / layout.result.name, folder / "outcome-0.json"]
        path = next((each for each in said if each.is_file()), said[0])
        yield folder, path, _read(path)


def _read(path: Path) -> Mapping[str, Any]:
    """A document of an earlier attempt; one that is not there or broken says nothing."""
    with contextlib.suppress(OSError, ValueError):
        document: Mapping[str, Any] = read_json(path)
        return document
    return {}


def _refuse_changed(layout: JobDirectory, path: Path, result: Mapping[str, Any]) -> None:
    for output in result["outputs"]:
        if sha256_tree(layout.root / output["path"])[0] != output["sha256"]:
            raise BadJob(
                f"{output['path']} is not what {path.relative_to(layout.root)} says",
                expected=f"the sha256 {output['sha256']}", setting="app-trainer run, to make it again",
            )  # fmt: skip


def _facts(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in OWN}


def _work(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in what_is_asked(document).items() if name not in BESIDE}
