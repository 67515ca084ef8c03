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

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
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
from app_trainer_sdk.files import read_json, remove_tree, sha256_file, sync_directory, sync_file, write_json
from app_trainer_sdk.values import Snapshot


class CheckpointStore:
    """The checkpoints of one run below one directory.

    Args:
        directory: where ``step-*`` folders live; it may hold those of other runs, which are left alone.
        run: identifier of this job.
        save_tensors: writes a safetensors file; an argument so that a test can make the disk fail.
    """

    def __init__(
        self, directory: Path, run: str, *, save_tensors: Callable[[dict[str, Tensor], str], None] = save_file
    ) -> None:
        self.directory = directory
        self.run = run
        self._save_tensors = save_tensors
        self._verified: dict[Path, Checkpoint] = {}

    def save(self, step: int, snapshot: Snapshot, documents: Mapping[str, Any]) -> Checkpoint:
        """Write a checkpoint and verify it. Nothing that was valid before is touched.

        Args:
            step: updates made.
            snapshot: CPU tensors that nobody writes to any more, and JSON values.
            documents: further JSON files by name (plan, identity).

        Raises:
            DiskFull: no space; what was written for this checkpoint is removed.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        self.sweep()
        beside = self.directory / f".step-{step:08d}.{os.getpid()}.tmp"
        try:
            beside.mkdir()
            self._write(beside, step, snapshot, documents)
            saved = self._put_in_place(beside, step)
        except BaseException as error:
            remove_tree(beside)
            if is_disk_full(error):
                raise DiskFull(
                    f"no space left while saving step {step} in {self.directory}", expected="free disk space"
                ) from error
            raise
        if saved.problem:
            raise InternalError(f"{saved.path.name} does not read back: {saved.problem}")
        return saved

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
        for path in removed:
            self._verified.pop(path, None)
            remove_tree(_move_aside(path))
        return removed

    def _write(self, folder: Path, step: int, snapshot: Snapshot, documents: Mapping[str, Any]) -> None:
        for section, tensors in _sections(snapshot).items():
            path = folder / f"{section}.safetensors"
            self._save_tensors(tensors, str(path))
            sync_file(path)
        for name, document in {STATE: snapshot.values, **documents}.items():
            write_json(folder / name, document)
        files = {
            path.name: {"size": path.stat().st_size, "sha256": sha256_file(path)}
            for path in sorted(folder.iterdir())
        }
        manifest = {"schema": CHECKPOINT_SCHEMA, "run": self.run, "step": step, "files": files}
        write_json(folder / MANIFEST, manifest)

    def _put_in_place(self, beside: Path, step: int) -> Checkpoint:
        place = self._place(step)
        beside.rename(place)
        sync_directory(self.directory)
        saved = inspect_checkpoint(place, digests=False)  # they were just computed from the same files
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
                _move_aside(folder)
            else:
                numbers.append(there.number)
        suffix = f"-{max(numbers) + 1}" if numbers else ""
        return self.directory / f"step-{step:08d}{suffix}"


def load_checkpoint(checkpoint: Checkpoint) -> Snapshot:
    """The snapshot a checkpoint holds; tensors are copies in memory, dtypes as saved."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(checkpoint.path.glob("*.safetensors")):
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


def _move_aside(path: Path) -> Path:
    """Out of the way at once: a kill in the middle must not leave half a checkpoint under its name."""
    aside = path.with_name(f".{path.name}.old.tmp")
    remove_tree(aside)
    path.rename(aside)
    return aside


def _sections(snapshot: Snapshot) -> dict[str, dict[str, Tensor]]:
    sections: dict[str, dict[str, Tensor]] = {}
    for name, tensor in snapshot.tensors.items():
        section, _, rest = name.partition("/")
        if not rest:
            raise InternalError(f"a snapshot's tensor is called {name!r}", expected="section/name")
        sections.setdefault(section, {})[rest] = tensor
    return sections
