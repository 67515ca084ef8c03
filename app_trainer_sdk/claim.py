"""Owns whether a directory may be used for a job: free, begun by it, finished by it, or another job's.

It must not know how a job is run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app_trainer_sdk.arguments import FILE, found_at
from app_trainer_sdk.changes import NEVER, OPTION, SETTINGS
from app_trainer_sdk.errors import BadJob, DependencyUnavailable, DiskFull, Problem, is_disk_full
from app_trainer_sdk.files import read_json, remove_tree
from app_trainer_sdk.job import Job, what_is_asked
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.redaction import without_secrets


def under_its_name(layout: JobDirectory, job: Job, *, may_change: bool = False) -> Job:
    """The job by the name that the directory knows it by.

    Without a ``job_id`` each setting gives a job another name. One that is, or may be, the directory's job
    changed on a resume goes on under the name it began with.
    """
    there = _read_ours(layout.job)
    asked = what_is_asked({**job.document(), "callbacks": None, "job_id": None})
    same = asked == what_is_asked({**there, "callbacks": None, "job_id": None})
    return job.under_name(str(there["job_id"])) if "job_id" in there and (same or may_change) else job


def is_finished(layout: JobDirectory, job: Job) -> bool:
    """Whether the directory holds this job, finished.

    Raises:
        BadJob: it holds another job.
    """
    there = _read_ours(layout.job)
    finished = _read_ours(layout.result).get("status") == "succeeded"
    if there and there.get("job_id") != job.identifier():
        raise BadJob(
            f"{layout.root} belongs to job {there.get('job_id')}, not to {job.identifier()}:",
            problems=_differences(there, without_secrets(job.document()), resumable=not finished),
            expected=f"a directory of job {job.identifier()}", setting="--job-dir, or the job back",
        )  # fmt: skip
    if finished and there:
        _refuse_changes(there, without_secrets(job.document()), layout)
    return finished


def free_if_untrained(layout: JobDirectory, job: Job) -> None:
    """Let another job have a directory in which nothing was trained: it has no checkpoint and is not finished.

    A start that failed before the first checkpoint must not keep its mended job out.
    """
    there, asked = what_is_asked(_read_ours(layout.job)), what_is_asked(job.document())
    began = (layout.root / "attempts").is_dir()  # the file is an earlier start's, and not somebody else's
    trained = any(layout.checkpoints.glob("step-*"))
    if not there or not began or trained or _read_ours(layout.result).get("status") == "succeeded":
        return
    ours = {name: there.get(name) for name in {*there, *asked} - {"callbacks", "job_id"}}
    if ours != {name: asked.get(name) for name in ours} or there.get("job_id") != job.identifier():
        remove_tree(layout.inputs)
        layout.job.unlink()


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Inside, no other process works in ``folder``: two would mix their lines and remove each other's files.

    The lock is the kernel's and ends with the process, however it ends. A file system without locks has none.

    Raises:
        DependencyUnavailable: another process works there.
        BadJob: it cannot be opened.
    """
    descriptor = _opened(folder)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DependencyUnavailable(
            f"another process works in {folder}", expected="one at a time",
            setting="--job-dir, or wait until it has ended",
        ) from None  # fmt: skip
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL):
            raise
    try:
        yield
    finally:
        os.close(descriptor)


def _opened(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BadJob(
            f"cannot open {folder}: {error.strerror}", expected="a folder that can be used",
            setting="--job-dir",
        ) from None  # fmt: skip


def make_folder(folder: Path, *, setting: str = "--job-dir") -> None:
    """Make a folder; ``setting`` says where it was chosen.

    Raises:
        BadJob: it cannot be made there.
        DiskFull: there is no space.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if is_disk_full(error):
            raise DiskFull(f"cannot make {folder}: {error.strerror}", expected="free disk space") from None
        wrong = next((each for each in (folder, *folder.parents) if found_at(each) == FILE), None)
        raise BadJob(
            f"{FILE} at {wrong}" if wrong else f"cannot make {folder}: {error.strerror}",
            expected="a folder that can be written",
            setting=setting,
        ) from None


def _refuse_changes(there: Mapping[str, Any], asked: Mapping[str, Any], layout: JobDirectory) -> None:
    """A name of its own does not make a changed job the finished one."""
    changed = _differences({**there, "inputs": {}}, {**asked, "inputs": {}}, resumable=False)
    if changed:
        raise BadJob(
            f"{layout.root} holds job {there['job_id']}, finished as another job:", problems=changed,
            setting="--job-dir or job_id, or the job back",
        )  # fmt: skip


def _differences(
    there: Mapping[str, Any], asked: Mapping[str, Any], *, resumable: bool = True
) -> list[Problem]:
    """Where the job that was asked differs from the directory's, each with the option that would allow it."""
    there, asked = what_is_asked(there), what_is_asked(asked)
    problems = [
        Problem(f"/{part}", _told(asked, part), f"{_told(there, part)}, as in the directory", NEVER[part])
        for part in ("trainer", "model", "method")
        if there.get(part) != asked.get(part)
    ]
    for part, field in (("hyperparameters", SETTINGS), ("inputs", "")):
        silent = "the default" if field else "nothing"
        before, now = there.get(part) or {}, asked.get(part) or {}
        for name in sorted({*before, *now}):
            if before.get(name) == now.get(name):
                continue
            allowed = f"{OPTION} {field + name if field else 'dataset'}"
            problems.append(
                Problem(
                    f"/{part}/{name}", _told(now, name, silent),
                    f"{_told(before, name, silent)}, as in the directory",
                    allowed if resumable and field + name not in NEVER else "",
                )
            )  # fmt: skip
    return problems


def _told(values: Mapping[str, Any], name: str, silent: str = "the default") -> str:
    return silent if values.get(name) is None else repr(values[name])


def _read_ours(path: Path) -> dict[str, Any]:
    """A document an earlier start left, empty when there is none."""
    try:
        document: dict[str, Any] = read_json(path)
        if not isinstance(document, dict):
            raise ValueError(f"a {type(document).__name__}, not an object")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        found = f"cannot read {path}: {error}"
        raise BadJob(found, expected="what an earlier start wrote", setting="--job-dir") from None
    return document
