"""Owns reading a job: a parsed document in, a :class:`Job` out, short forms written out and paths made whole.

All that is wrong is told at once, also what its trainer refuses. This file must not know how inputs come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from app_trainer_sdk.arguments import job_directory
from app_trainer_sdk.errors import BadJob, Problem, TrainerError
from app_trainer_sdk.job.checking import check_job
from app_trainer_sdk.job.document import Job
from app_trainer_sdk.job.syntax import parse_document
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.validation import explain, show


def load_job(path: Path) -> Job:
    """Read a job from a JSON or YAML file; paths in it are relative to the file.

    Raises:
        BadJob: the file is missing, unreadable, not JSON or YAML, or not a job; all problems at once.
    """
    return read_job(parse_document(path), base=path.resolve().parent)


def begun_job(directory: Path, setting: str = "DIR") -> Job:
    """The job that was begun in ``directory``, as it is kept there; ``setting`` is the argument that named it.

    Raises:
        BadJob: none was, or what is kept is no job.
    """
    path = JobDirectory(job_directory(directory, setting)).job
    if not path.is_file():
        raise BadJob(f"no job in {directory}", expected="the directory of a job", setting=setting)
    return read_job(parse_document(path, setting))


def read_job(document: Any, *, base: Path | None = None) -> Job:
    """Validate a parsed job. Relative paths are resolved against ``base`` when it is given."""
    if not isinstance(document, Mapping):
        raise BadJob(f"a job that is {show(document)}", expected="an object with trainer and model")
    normal = _normalised(document)
    try:
        job = Job.model_validate(normal)
    except ValidationError as error:
        problems = explain(error, Job)
        raise BadJob("the job cannot be used:", problems=problems + _further(normal, problems)) from None
    return _resolve_paths(job, base) if base else job


def _further(document: Mapping[str, Any], problems: Sequence[Problem]) -> list[Problem]:
    """What the trainer, where it is known, refuses of the parts that are right by themselves."""
    from app_trainer_sdk.registry import find_trainer  # only once something is wrong

    wrong = {part for problem in problems for part in problem.pointer.split("/")[1:2]}
    right = {name: each for name, each in document.items() if name not in wrong}
    try:
        job = Job.model_validate({"model": "-", **right})  # a placeholder, where it is among the wrong parts
        trainer = find_trainer(job.trainer)
    except (TrainerError, ValidationError):  # nobody to ask: that error comes once the document is right
        return []
    try:
        check_job(job, trainer)
    except BadJob as error:
        return [each for each in error.problems if each.pointer.split("/")[1] not in wrong]
    return []


def _normalised(document: Mapping[str, Any]) -> dict[str, Any]:
    """A string where a file is expected means ``{"url": ...}``: said before validation, told once."""
    normal = dict(document)
    for key in ("inputs", "weights"):
        if isinstance(normal.get(key), Mapping):
            normal[key] = {
                name: {"url": value} if isinstance(value, str) else value for name, value in normal[key].items()
            }
    if isinstance(normal.get("weights"), Mapping):
        normal["weights"] = {name: _normal_files(each) for name, each in normal["weights"].items()}
    if isinstance(normal.get("resume"), Mapping):
        normal["resume"] = _normal_files(normal["resume"])
    if isinstance(normal.get("callbacks"), str):
        normal["callbacks"] = {"url": normal["callbacks"]}
    return normal


def _normal_files(weights: Any) -> Any:
    """In ``files`` a string is the one place of a file of that name, and ``url`` is one mirror."""
    if not isinstance(weights, Mapping) or not isinstance(weights.get("files"), list):
        return weights
    files: list[Any] = []
    for each in weights["files"]:
        if isinstance(each, str):
            each = {"path": unquote(urlsplit(each).path).rpartition("/")[2], "urls": [each]}
        elif isinstance(each, Mapping):
            each = dict(each)
            if "url" in each and "urls" not in each:
                each["urls"] = each.pop("url")
            if isinstance(each.get("urls"), str):
                each["urls"] = [each["urls"]]
        files.append(each)
    return {**weights, "files": files}


def _resolve_paths(job: Job, base: Path) -> Job:
    def place(url: str) -> str:
        local = "://" not in url and not url.startswith("file:")
        return str(base / _at_home(Path(url))) if local else url

    def resolve_files(reference: Any) -> Any:
        files = [each.model_copy(update={"urls": [*map(place, each.urls)]}) for each in reference.files]
        return reference.model_copy(update={"files": files})

    def resolve(reference: Any) -> Any:
        update: dict[str, Any] = {} if reference.url is None else {"url": place(reference.url)}
        resolved = reference.model_copy(update=update)
        return resolved if getattr(reference, "files", None) is None else resolve_files(resolved)

    return job.model_copy(
        update={
            "inputs": {name: resolve(each) for name, each in job.inputs.items()},
            "weights": {name: resolve(each) for name, each in job.weights.items()},
            "resume": None if job.resume is None else resolve_files(job.resume),
            "job_id": job.identifier(),
        }
    )


def _at_home(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # ~somebody who has no home here: then it is a file of that name
        return path
