"""Owns checkpoints on disk: complete or not there, the newest valid one found again, old ones removed.

A checkpoint is a directory of safetensors and JSON, written beside its place, its manifest last, and put in
place by one rename; it can be read without this library. This file must not know what is trained.

::

    step-00000400/
        model.safetensors optimizer.safetensors ema.safetensors random.safetensors   tensors by canonical name
        state.json      counters and values, JSON
        plan.json       the plan, reused on resume
        identity.json   what must be equal for a resume to be exact
        manifest.json   run, step, and size and SHA-256 of every other file; written last
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from app_trainer_sdk.checkpoints import (
    CHECKPOINT_SCHEMA,
    MANIFEST,
    STATE,
    Checkpoint,
    find_checkpoints,
    inspect_checkpoint,
)
from app_trainer_sdk.errors import BadJob, DiskFull, InternalError, is_disk_full
from app_trainer_sdk.files import Disk, RealDisk, json_bytes, read_json, remove_tree, sha256_file
from app_trainer_sdk.values import Snapshot

#: How a folder says that it may not be written, as opposed to a disk that fails.
FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR})


class CheckpointStore:
    """The checkpoints of one run below one directory.

    Args:
        directory: where ``step-*`` folders live; it may hold those of other runs, which are left alone.
        run: identifier of this job.
        disk: what they are written with.
    """

    def __init__(self, directory: Path, run: str, *, disk: Disk | None = None) -> None:
        self.directory = directory
        self.run = run
        self._disk: Disk = disk or RealDisk()
        self._verified: dict[Path, Checkpoint] = {}

    def prepare(self) -> None:
        """Find out before training whether a checkpoint can be begun here.

        Raises:
            BadJob: the directory may not be written.
            DiskFull: there is no space for a folder.
            InternalError: the disk fails in another way.
        """
        probe = self.directory / f".step-probe.{os.getpid()}.tmp"
        with _telling(f"looking whether {self.directory} can be written"):
            try:
                self._disk.make(probe)
            except OSError as error:
                if error.errno not in FORBIDDEN:
                    raise
                raise BadJob(
                    f"no checkpoint can be written in {self.directory}: {error.strerror}",
                    expected="a folder that can be written", setting="--job-dir, or what the folder allows",
                ) from error  # fmt: skip
        remove_tree(probe)

    def save(self, step: int, snapshot: Snapshot, documents: Mapping[str, Any]) -> Checkpoint:
        """Write a checkpoint and verify it. Nothing that was valid before is touched.

        Args:
            step: updates made.
            snapshot: CPU tensors that nobody writes to any more, and JSON values.
            documents: further JSON files by name (plan, identity).

        Raises:
            DiskFull: no space; what was written for this checkpoint is removed.
            InternalError: the disk failed in another way, or what was written does not read back.
        """
        beside = self.directory / f".step-{step:08d}.{os.getpid()}.tmp"
        with _telling(f"saving step {step} in {self.directory}"):
            try:
                self.sweep()
                self._disk.make(beside)
                self._write(beside, step, snapshot, documents)
                return self._put_in_place(beside, step)
            except BaseException:
                remove_tree(beside)
                raise

    def sweep(self) -> None:
        """Remove what a killed process left half written."""
        for leftover in self.directory.glob(".step-*.tmp"):
            remove_tree(leftover)

    def find(self) -> list[Checkpoint]:
        """Every checkpoint folder, newest step first, invalid ones with their problem."""
        folders = find_checkpoints(self.directory)
        found = [self._verified.get(each) or inspect_checkpoint(each) for each in folders]
        self._verified |= {each.path: each for each in found if not each.problem}  # digests are read once
        return sorted(found, key=lambda each: (each.step, each.number), reverse=True)

    def newest(self) -> tuple[Checkpoint | None, list[Checkpoint]]:
        """The newest valid checkpoint of this run, and those skipped on the way to it with the reason."""
        skipped: list[Checkpoint] = []
        for checkpoint in self.find():
            if not checkpoint.problem and checkpoint.run == self.run:
                return checkpoint, skipped
            skipped.append(checkpoint)
        return None, skipped

    def retain(self, keep: int, *, best: int | None = None) -> list[Path]:
        """Remove this run's older checkpoints, keeping the ``keep`` newest valid ones and the best.

        Call it only after the newest one was verified. Folders of other runs are never touched.
        """
        if keep < 1:
            raise BadJob(f"checkpoints_kept is {keep}", expected="at least 1")
        mine = [each for each in self.find() if each.run == self.run]
        valid = [each for each in mine if not each.problem]
        kept = {each.path for each in valid[:keep]} | {each.path for each in valid if each.step == best}
        removed = [each.path for each in mine if each.path not in kept] if valid else []
        with _telling(f"removing old checkpoints from {self.directory}"):
            for path in removed:
                self._verified.pop(path, None)
                remove_tree(self._move_aside(path))
        return removed

    def _write(self, folder: Path, step: int, snapshot: Snapshot, documents: Mapping[str, Any]) -> None:
        files = {}
        for section, tensors in _sections(snapshot).items():
            path = folder / f"{section}.safetensors"
            self._disk.write(path, functools.partial(save_file, tensors))
            self._disk.sync(path)
            _refuse_unreadable(path, tensors)
            files[path.name] = {"size": path.stat().st_size, "sha256": sha256_file(path)}
        for name, document in {STATE: snapshot.values, **documents}.items():
            files[name] = self._write_document(folder / name, document)
        manifest = {"schema": CHECKPOINT_SCHEMA, "run": self.run, "step": step, "files": files}
        self._write_document(folder / MANIFEST, manifest)
        self._disk.sync(folder)

    def _write_document(self, path: Path, document: Any) -> dict[str, Any]:
        data = json_bytes(document)
        self._disk.write(path, lambda path: path.write_bytes(data))
        self._disk.sync(path)
        return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def _put_in_place(self, beside: Path, step: int) -> Checkpoint:
        _refuse_problem(inspect_checkpoint(beside, digests=False))  # they are of what was just written
        place = self._place(step)
        self._disk.rename(beside, place)
        self._disk.sync(self.directory)
        saved = inspect_checkpoint(place, digests=False)
        _refuse_problem(saved)
        self._verified[place] = saved
        self.sweep()
        return saved

    def _place(self, step: int) -> Path:
        """A free name for ``step``. A folder that is not valid makes room; a valid one, whoever's, stays.

        So nothing valid is missing for a moment: not even when a step is saved again with later evaluations.
        """
        numbers = []
        for folder in find_checkpoints(self.directory):
            if not folder.name.startswith(f"step-{step:08d}"):
                continue
            there = inspect_checkpoint(folder)
            if there.problem and there.run in ("", self.run):
                self._move_aside(folder)
            else:
                numbers.append(there.number)
        suffix = f"-{max(numbers) + 1}" if numbers else ""
        return self.directory / f"step-{step:08d}{suffix}"

    def _move_aside(self, path: Path) -> Path:
        """Out of the way at once: a kill in the middle must not leave half a checkpoint under its name."""
        aside = path.with_name(f".{path.name}.old.tmp")
        remove_tree(aside)
        self._disk.rename(path, aside)
        return aside


def load_checkpoint(checkpoint: Checkpoint, *, section: str = "*") -> Snapshot:
    """The snapshot a checkpoint holds, or one section of it; tensors are copies in memory, dtypes as saved."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(checkpoint.path.glob(f"{section}.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                tensors[f"{path.stem}/{name}"] = file.get_tensor(name)
    return Snapshot(tensors, read_json(checkpoint.path / STATE))


def copied(snapshot: Snapshot) -> Snapshot:
    """The snapshot with tensors of its own on the CPU: ``.cpu()`` alone would alias a CPU tensor.

    Values pass through JSON, so that what is used is exactly what a resume will read.
    """
    tensors = {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in snapshot.tensors.items()
    }
    return Snapshot(tensors, json.loads(json.dumps(snapshot.values)))


@contextlib.contextmanager
def _telling(act: str) -> Iterator[None]:
    """Inside, what the disk refuses becomes an error that says what was being done."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if is_disk_full(error):
            raise DiskFull(f"no space left while {act}", expected="free disk space") from error
        raise InternalError(
            f"{act} failed: {error}", expected="a disk that takes it; the checkpoints before it are kept"
        ) from error


def _refuse_unreadable(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Its digest is taken from the file as it is, so a file cut short must not get that far."""
    with safe_open(path, framework="pt") as file:
        if set(file.keys()) != tensors.keys():
            raise InternalError(f"{path.name} does not read back", expected="the tensors that were saved")


def _refuse_problem(written: Checkpoint) -> None:
    if written.problem:
        raise InternalError(f"{written.path.name} does not read back: {written.problem}")


def _sections(snapshot: Snapshot) -> dict[str, dict[str, Tensor]]:
    sections: dict[str, dict[str, Tensor]] = {}
    for name, tensor in snapshot.tensors.items():
        section, _, rest = name.partition("/")
        if not rest:
            raise InternalError(f"a snapshot's tensor is called {name!r}", expected="section/name")
        sections.setdefault(section, {})[rest] = tensor
    return sections
