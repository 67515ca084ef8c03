"""Owns getting a checkpoint that another machine uploaded, so that an empty disk goes on from it.

Verified twice: each file by its digest as it comes, and the whole by its manifest before it gets its name. It
must not know what a resume does with it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from app_trainer_sdk.checkpoints import FOLDER, IDENTITY, MANIFEST, find_checkpoints, inspect_checkpoint
from app_trainer_sdk.errors import BadJob, InputMissing
from app_trainer_sdk.files import read_json, remove_tree, sha256_file, sync_directory
from app_trainer_sdk.job import Job, Resume
from app_trainer_sdk.outputs.checkpoints import ROW_FILES, ROWS
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.transfers.download import Destination
from app_trainer_sdk.transfers.progress import ProgressListener
from app_trainer_sdk.transfers.sets import fetch_files
from app_trainer_sdk.transfers.tools import open_tools
from app_trainer_sdk.transfers.wanted import Wanted

SETTING = "/resume"


def fetch_resume(
    job: Job, layout: JobDirectory, check: Callable[[], None], *, told: ProgressListener
) -> int | None:
    """Make the job's remote checkpoint a local one, unless there is one as new; the step, None without any.

    Raises:
        InputMissing: it is not there any more, or not whole.
        BadJob: it is another job's, or not the one that is meant.
        TrainerError: as downloads.
    """
    said = job.resume
    if said is None or _has(layout.checkpoints, said.step, job.identifier()):
        return None
    coming = layout.checkpoints / ".coming"
    place = Destination(coming / "partial", lambda sha256: coming / "files" / sha256)
    files = [
        Wanted(
            each.path, tuple(map(_as_url, each.urls)), each.size, each.sha256, setting=f"{SETTING}/files/{at}"
        )
        for at, each in enumerate(said.files)
    ]
    with open_tools() as tools:
        found = fetch_files(files, place, label="checkpoint", tools=tools, check=check, told=told)
    folders = _arranged(found, coming / "whole", said.step)
    for folder in folders:
        _refuse_other(folder, job, said)
    for folder in folders:
        _take_rows(
            folder / ROWS, layout.root, wanted=inspect_checkpoint(folder, digests=False).step == said.step
        )
        target = layout.checkpoints / folder.name
        remove_tree(target)  # not whole, or it would have been gone on from
        folder.rename(target)
    sync_directory(layout.checkpoints)
    remove_tree(coming)
    return said.step


def _take_rows(rows: Path, root: Path, *, wanted: bool) -> None:
    """The run's rows so far are this run's; the resume cuts what was written past the checkpoint."""
    for name in ROW_FILES if wanted else ():
        if (rows / name).is_file() and not (root / name).exists():
            (rows / name).rename(root / name)
    remove_tree(rows)


def _as_url(place: str) -> str:
    return place if "://" in place or place.startswith("file:") else Path(place).absolute().as_uri()


def _has(folder: Path, step: int, run: str) -> bool:
    found = (inspect_checkpoint(each) for each in find_checkpoints(folder))
    return any(each.step >= step and each.run == run and not each.problem for each in found)


def _arranged(found: dict[str, Path], place: Path, step: int) -> list[Path]:
    """The files under their names; those without a folder belong to the step that is meant."""
    remove_tree(place)
    for name, path in found.items():
        target = place / (name if "/" in name else f"step-{step:08d}/{name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)  # one file may have several names
    return sorted(each for each in place.iterdir() if FOLDER.fullmatch(each.name))


def _refuse_other(folder: Path, job: Job, said: Resume) -> None:
    checkpoint = inspect_checkpoint(folder)
    if checkpoint.problem:
        raise InputMissing(
            f"the remote checkpoint {folder.name} is not whole: {checkpoint.problem}",
            expected=f"all files that its {MANIFEST} names", setting=f"{SETTING}/files",
        )  # fmt: skip
    if checkpoint.run != job.identifier():
        raise BadJob(
            f"the remote checkpoint {folder.name} is of job {checkpoint.run}",
            expected=f"one of job {job.identifier()}", setting=f"{SETTING} or /job_id",
        )  # fmt: skip
    if checkpoint.step != said.step or said.identity is None:
        return
    identity = f"sha256:{sha256_file(folder / IDENTITY)}"
    if identity != said.identity:
        raise BadJob(
            f"the remote checkpoint has the identity {identity}: {sorted(read_json(folder / IDENTITY))}",
            expected=said.identity, setting=f"{SETTING}/identity",
        )  # fmt: skip
