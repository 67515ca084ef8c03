"""Owns running preparation phases: each once, under the memory ledger, its result shared by its key.

A phase hands over files and JSON facts, never tensors. A finished result lies under a directory named by
the digest of everything it depends on; it is put there by one rename, so half of one is never used. This
file must not know what a phase computes.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from app_trainer_sdk.errors import InternalError, did_you_mean
from app_trainer_sdk.files import read_json, remove_tree, sync_directory, sync_file, write_json
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.randomness import CPU, global_seeds
from app_trainer_sdk.values import JSON, Phase

if TYPE_CHECKING:
    from app_trainer_sdk.contract import Trainer
    from app_trainer_sdk.handle import Run

FACTS = "facts.json"
STORE_VERSION = 1


def run_phases(trainer: Trainer, run: Run, ledger: Ledger) -> None:
    """Run the trainer's phases in order; afterwards ``run.store`` and ``run.facts`` know each of them."""
    for phase in trainer.phases(run):
        if phase.name not in trainer.preparation:
            raise InternalError(
                f"phases() returned {phase.name!r}", expected="a name from preparation",
                setting=did_you_mean(phase.name, trainer.preparation),
            )  # fmt: skip
        run.check()
        folder = run.cache / "features" / phase_key(trainer, phase)
        reused = (folder / FACTS).is_file()
        with ledger.phase(phase.name, inputs=phase.key) as row:
            row.reused = reused
            if not reused:
                _work(phase, run, folder)
        run.store[phase.name] = folder
        run.facts[phase.name] = read_json(folder / FACTS)


def phase_key(trainer: Trainer, phase: Phase) -> str:
    """Name of a phase's result: readable, then a digest of all it depends on."""
    parts = {
        "trainer": trainer.name, "version": trainer.version, "phase": phase.name, "key": phase.key,
        "store": STORE_VERSION,
    }  # fmt: skip
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return f"{trainer.name}-{phase.name}-{hashlib.sha256(canonical.encode()).hexdigest()[:24]}"


def _work(phase: Phase, run: Run, folder: Path) -> None:
    beside = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    remove_tree(beside)
    beside.mkdir(parents=True)
    try:
        # Seeded by name, and put back: a phase that is skipped on resume moves no number.
        with global_seeds(run.random("phase", phase.name).seed, run.device or CPU):
            facts: Mapping[str, JSON] = phase.work(run, beside)
        for path in sorted(each for each in beside.rglob("*") if each.is_file()):
            sync_file(path)
        write_json(beside / FACTS, facts)
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
