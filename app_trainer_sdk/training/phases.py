"""Owns running preparation phases: each once, under the memory ledger, its result shared by its key.

A phase hands over files and JSON facts, never tensors. A finished result lies under a directory named by
the digest of everything it depends on; it is put there by one rename, so half of one is never used. This
file must not know what a phase computes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app_trainer_sdk import __version__
from app_trainer_sdk.cache.features import result_folder
from app_trainer_sdk.cache.folders import Folders
from app_trainer_sdk.errors import InternalError, did_you_mean
from app_trainer_sdk.files import (
    json_bytes,
    read_json,
    remove_tree,
    sha256_file,
    sha256_tree,
    sync_directory,
    sync_file,
    write_atomic,
)
from app_trainer_sdk.training.feature_store import damaged_items
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.phase_process import work_in_own_process
from app_trainer_sdk.training.phase_row import Row
from app_trainer_sdk.training.randomness import CPU, global_seeds
from app_trainer_sdk.values import JSON, Part, Phase

if TYPE_CHECKING:
    from app_trainer_sdk.contract import Trainer
    from app_trainer_sdk.handle import Run

FACTS = "facts.json"
STORE_VERSION = 1


def run_phases(trainer: Trainer, run: Run, ledger: Ledger, *, verify: bool = True) -> None:
    """Run the trainer's phases in order; afterwards ``run.store`` and ``run.facts`` know each of them.

    Args:
        trainer: the trainer.
        run: the handle.
        ledger: measures each phase.
        verify: whether features of earlier results are checked for damage; once a start is enough.
    """
    for phase in trainer.phases(run):
        _check_phase(trainer, phase)
        run.check()
        folder = result_folder(run.cache, phase_key(trainer, phase, run))
        Folders(run.cache).hold_result(folder)
        with ledger.phase(phase.name, inputs=phase.key) as row:
            _find_or_work(trainer, phase, run, folder, row, verify=verify)
        run.store[phase.name] = folder
        run.facts[phase.name] = read_json(folder / FACTS)


def _check_phase(trainer: Trainer, phase: Phase) -> None:
    if phase.name not in trainer.preparation:
        raise InternalError(
            f"phases() returned {phase.name!r}", expected="a name from preparation",
            setting=did_you_mean(phase.name, trainer.preparation),
        )  # fmt: skip
    unknown = [each for each in phase.uses if each not in PARTS]
    if unknown or isinstance(phase.uses, str):
        raise InternalError(
            f"the phase {phase.name} uses {phase.uses!r}", expected="a tuple of " + ", ".join(PARTS),
            setting="uses",
        )  # fmt: skip
    _as_json(phase.key, phase.name, "key")


def _as_json(value: Any, name: str, what: str) -> bytes:
    """A phase's key or facts as JSON; told by the phase where they are none."""
    if not isinstance(value, Mapping):
        raise InternalError(f"the {what} of the phase {name} is {value!r}", expected="a mapping")
    try:
        return json_bytes(value)
    except (TypeError, ValueError) as error:
        raise InternalError(
            f"the {what} of the phase {name} cannot be kept: {error}", expected="JSON: numbers, text, lists",
            setting=f"what is no JSON among the {what} of {name}",
        ) from None  # fmt: skip


def phase_key(trainer: Trainer, phase: Phase, run: Run) -> str:
    """Name of a phase's result: readable, then a digest of all it depends on."""
    parts = {
        "trainer": trainer.name, "version": trainer.version, "phase": phase.name, "key": phase.key,
        "store": STORE_VERSION, "sdk": __version__,
        "uses": {str(part): PARTS[part](run) for part in phase.uses},
    }  # fmt: skip
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"{trainer.name}-{phase.name}-{hashlib.sha256(canonical.encode()).hexdigest()[:24]}"


def _find_or_work(trainer: Trainer, phase: Phase, run: Run, folder: Path, row: Row, *, verify: bool) -> None:
    """Use the result that is there when all of it can be used; else make it."""
    if _has_facts(folder):
        row.damaged = damaged_items(folder, run.cache, run.check) if verify else 0
        row.reused = not row.damaged
    if row.reused:
        return
    remove_tree(folder)  # items that are whole lie elsewhere and are found again
    if phase.own_process:
        row.process = work_in_own_process(trainer, phase, run, folder, work_here)
    else:
        work_here(phase, run, folder)


def _has_facts(folder: Path) -> bool:
    try:
        return isinstance(read_json(folder / FACTS), dict)
    except (OSError, ValueError):
        return False


def _weights(run: Run) -> JSON:
    """What identifies the base weights: as job or catalog name them, else a digest of what is there."""
    known = {role: run.identity.get(f"weights/{role}") for role in run.weights}
    return {role: known[role] or _digest(path) for role, path in sorted(run.weights.items())}


def _inputs(run: Run) -> JSON:
    """What identifies the data: the trainer's own fingerprint, else a digest of every input's content."""
    if "data" in run.identity:
        return run.identity["data"]
    return {name: _digest(path) for name, path in sorted(run.inputs.items())}


def _digest(path: Path) -> str:
    return sha256_tree(path)[0] if path.is_dir() else sha256_file(path)


#: How each part of a run that a phase may depend on is told apart.
PARTS: Mapping[Part, Callable[[Run], JSON]] = {
    "weights": _weights,
    "inputs": _inputs,
    "phases": lambda run: {name: folder.name for name, folder in sorted(run.store.items())},
    "precision": lambda run: str(run.dtype),
    "seed": lambda run: int(run.settings.seed),
}


def work_here(phase: Phase, run: Run, folder: Path) -> None:
    """Do a phase's work in this process; afterwards ``folder`` holds all of the result."""
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    remove_tree(beside)
    beside.mkdir(parents=True)
    try:
        # Seeded by name, and put back: a phase that is skipped on resume moves no number.
        with global_seeds(run.random("phase", phase.name).seed, run.device or CPU):
            facts = phase.work(run, beside)
        for path in sorted(each for each in beside.rglob("*") if each.is_file()):
            sync_file(path)
        # Work that returns nothing has no facts to tell: what it took to make its files is not thrown away.
        write_atomic(beside / FACTS, _as_json({} if facts is None else facts, phase.name, "facts"))
        _put_in_place(beside, folder)
    finally:
        remove_tree(beside)


def _put_in_place(beside: Path, folder: Path) -> None:
    try:
        beside.rename(folder)
    except OSError:
        # Another job finished the same phase meanwhile: equal keys mean equal results. Without its facts what
        # stands there is what somebody's removal left, and no result.
        if not (folder / FACTS).is_file():
            remove_tree(folder)
            beside.rename(folder)
    sync_directory(folder.parent)
