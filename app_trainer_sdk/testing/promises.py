"""Owns the promises that can be judged in this process, each one short function.

A promise takes the subject, returns what it measured (or nothing) and raises ``BrokenPromise`` with what the
author has to change. This file must not know how results are shown. Importing it does not import torch.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app_trainer_sdk.contract import SupervisedTrainer, Trainer
from app_trainer_sdk.contract_check import check_trainer_class
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.testing.processes import environment
from app_trainer_sdk.testing.subject import Subject, open_in_this_process, refuse_if_not
from app_trainer_sdk.testing.verdict import BrokenPromise
from app_trainer_sdk.values import Artifact, Examination, Snapshot, Stream

DESCRIBE = """
import sys, time
started = time.perf_counter()
from app_trainer_sdk.describe import main
code = main([sys.argv[1]])
seconds = time.perf_counter() - started
heavy = [name for name in ("torch", "transformers", "numpy") if name in sys.modules]
sys.stderr.write(f"\\n{code} {seconds:.2f} {','.join(heavy)}")
"""


def contract(subject: Subject) -> str | None:
    """The class is found by its name and keeps the contract, and the job asked for fits it."""
    check_trainer_class(subject.trainer_class, bases=(Trainer, SupervisedTrainer))
    subject.asked.job()
    return None


def describe(subject: Subject) -> str:
    """``describe`` answers in another process without importing torch."""
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE, subject.asked.reference], capture_output=True, text=True,
        env=environment(), check=False,
    )  # fmt: skip
    *said, last = done.stderr.splitlines() or [""]
    if done.returncode or not last.startswith("0 "):
        raise BrokenPromise(
            f"describe failed in a new process: {(' '.join(said) or done.stderr).strip()[-300:]}",
            expected="the trainer's document", setting="what its module imports, or where python looks for it",
        )  # fmt: skip
    _, seconds, heavy = last.split(" ")
    if heavy:
        raise BrokenPromise(
            f"describing it imports {heavy.replace(',', ', ')}", expected="none of them",
            setting=f"the imports at the top of {subject.trainer_class.__module__} and what it imports: "
            "move them into the methods",
        )  # fmt: skip
    return f"{seconds} s"


def plan(subject: Subject) -> str:
    """The trainer's own defaults, with what the author set, become a plan."""
    _, resolved = open_in_this_process(subject.asked.job(), subject.folder / "defaults")
    return f"{resolved.updates} updates × {resolved.examples_per_update} examples"


def examine(subject: Subject) -> str | None:
    """``examine`` says the same each time, and counts the rows that training will see."""
    from app_trainer_sdk.testing.compare import first_difference

    refuse_if_not(first := subject.trainer.examine(subject.run), Examination, "examine")
    second = subject.trainer_class().examine(subject.run)
    difference = first_difference(first, second, "examine()")
    if difference:
        raise BrokenPromise(
            f"{difference} when asked twice", expected="equal answers, since a resume compares fingerprints",
            setting="examine",
        )  # fmt: skip
    json.dumps(dict(first.facts), allow_nan=False)
    if issubclass(subject.trainer_class, SupervisedTrainer):
        trainer, run = subject.supervised()
        dataset = trainer.dataset(run, "train")
        rows, stream = (None, dataset.resume) if isinstance(dataset, Stream) else (len(dataset), "")
        if (first.rows, first.stream) != (rows, stream):
            raise BrokenPromise(
                f"examine counts {first.rows} rows and dataset('train') has {rows}; as streams they resume "
                f"{first.stream!r} and {stream!r}", expected="the same", setting="examine",
            )  # fmt: skip
        _refuse_other_groups(first, dataset, trainer.name)
    return None if first.rows is None else f"{first.rows} rows"


def _refuse_other_groups(told: Examination, dataset: Any, name: str) -> None:
    from app_trainer_sdk.training.row_facts import read_row_facts

    if not told.group_sizes or not hasattr(dataset, "groups"):
        return
    sizes = read_row_facts(dataset, Hyperparameters(batching="by_group"), name).group_sizes
    if list(told.group_sizes) != sizes:
        raise BrokenPromise(
            f"examine tells groups of {list(told.group_sizes)} rows, and dataset('train') of {sizes}",
            expected="the same, in the order of the groups' names", setting="examine",
        )  # fmt: skip


def two_updates(subject: Subject) -> str:
    """Two updates are made, counted 1 and 2, with finite losses."""
    from app_trainer_sdk.training.metrics import read_numbers

    steps = subject.started.steps
    losses = list(read_numbers([each.loss for each in steps]))
    if [each.step for each in steps] != [1, 2] or not all(math.isfinite(each) for each in losses):
        told = ", ".join(
            f"step {each.step} loss {value:.6g} {each.why}".rstrip()
            for each, value in zip(steps, losses, strict=True)
        )
        raise BrokenPromise(
            f"training gave {told or 'no update'}", expected="steps 1 and 2 with finite losses",
            setting="training_steps, loss or learning_rate",
        )  # fmt: skip
    return "losses " + ", ".join(f"{each:.4g}" for each in losses)


def evaluation(subject: Subject) -> str | None:
    """Evaluation leaves modes, parameters, state and global generators as they were.

    The ordinary loop seeds torch's own generator before each microbatch, so for a ``SupervisedTrainer`` that
    one may move.
    """
    from app_trainer_sdk.testing.compare import first_difference, global_states, moved_generators
    from app_trainer_sdk.training.checkpoint import copied

    trainer, state = subject.trainer, subject.started.state
    supervised = isinstance(trainer, SupervisedTrainer)
    before, generators = copied(trainer.snapshot(state)), global_states()
    modes = [each.training for each in state.modules.root.modules()] if supervised else []
    for split in ("validation", "test"):
        for _ in trainer.evaluate(subject.run, state, split):
            pass
    moved = moved_generators(generators, but="torch" if supervised else "")
    difference = _snapshot_difference(before, copied(trainer.snapshot(state)))
    if supervised and not difference:
        after = [each.training for each in state.modules.root.modules()]
        difference = first_difference(modes, after, "training mode of modules")
    if moved or difference:
        told = difference or f"the global generator of {' and '.join(moved)}"
        raise BrokenPromise(
            f"evaluation changed {told}", expected="the state as it was, since evaluating must not train",
            setting="measure or loss" if supervised else "evaluate",
        )  # fmt: skip
    return None


def saves(subject: Subject) -> str:
    """A checkpoint verifies, and ``begin`` rebuilds from it exactly what it holds."""
    from app_trainer_sdk.checkpoints import inspect_checkpoint
    from app_trainer_sdk.training.checkpoint import CheckpointStore, copied, load_checkpoint

    refuse_if_not(subject.trainer.snapshot(subject.started.state), Snapshot, "snapshot")
    store = CheckpointStore(subject.folder / "checkpoints", "check")
    kept = store.save(2, subject.saved, {})
    problem = inspect_checkpoint(kept.path).problem
    if problem:
        raise BrokenPromise(f"the checkpoint does not verify: {problem}", setting="snapshot")
    loaded = load_checkpoint(kept)
    trainer = subject.trainer_class()
    rebuilt = copied(trainer.snapshot(trainer.begin(subject.run, loaded)))
    difference = _snapshot_difference(_but_lost_place(subject.saved), _but_lost_place(rebuilt))
    if difference:
        raise BrokenPromise(
            f"after begin from a checkpoint {difference}", expected="all of it to be put back",
            setting="begin, or what snapshot returns",
        )  # fmt: skip
    return f"{kept.size_bytes:,} bytes"


def export(subject: Subject) -> str:
    """``export`` needs nothing but the checkpoint, depends on it, and writes every declared folder."""
    trainer, run, saved = subject.trainer_class(), subject.run, subject.saved
    folder = _emptied(subject.folder / "export")
    refuse_if_not(artifact := trainer.export(run, saved, folder), Artifact, "export")
    declared = trainer.artifacts[run.method]
    missing = [name for name in declared if not any((folder / name).glob("*"))]
    if missing or artifact.name not in declared:
        raise BrokenPromise(
            f"export wrote nothing to {', '.join(missing)}" if missing else f"export names {artifact.name!r}",
            expected=f"files in the folders {', '.join(declared)}", setting="export or artifacts",
        )  # fmt: skip
    if len(artifact.controls) != len(artifact.expected) or not artifact.controls:
        raise BrokenPromise(
            f"export gives {len(artifact.controls)} controls and {len(artifact.expected)} answers",
            expected="at least one control and an answer to each, or nobody knows whether the artifact loads",
            setting="Artifact(controls=..., expected=...)",
        )  # fmt: skip
    first = _contents(folder)
    trainer.export(run, _other(saved), folder := _emptied(subject.folder / "export"))
    if _contents(folder) == first:
        raise BrokenPromise(
            "two different checkpoints give the same artifact, byte for byte",
            expected="weights from the argument saved", setting="export",
        )  # fmt: skip
    return ", ".join(declared)


def _snapshot_difference(one: Snapshot, other: Snapshot) -> str:
    from app_trainer_sdk.testing.compare import first_difference

    tensors = first_difference(dict(one.tensors), dict(other.tensors), "snapshot.tensors")
    return tensors or first_difference(dict(one.values), dict(other.values), "snapshot.values")


def _but_lost_place(snapshot: Snapshot) -> Snapshot:
    """Without the place in a stream that says it cannot go on there: it begins a new pass."""
    place: Any = snapshot.values.get("stream")
    kept = {name: value for name, value in snapshot.values.items() if name != "stream"}
    return Snapshot(snapshot.tensors, kept) if place and place["resume"] == "not exact" else snapshot


def _other(saved: Snapshot) -> Snapshot:
    """Another checkpoint: the same names and shapes with other numbers."""
    kept = ("optimizer/", "random/")
    tensors = {
        name: each if name.startswith(kept) or not each.is_floating_point() else each * 1.5 + 0.25
        for name, each in saved.tensors.items()
    }
    return Snapshot(tensors, saved.values)


def _emptied(folder: Path) -> Path:
    from app_trainer_sdk.files import remove_tree

    remove_tree(folder)
    folder.mkdir(parents=True)
    return folder


def _contents(folder: Path) -> Mapping[str, bytes]:
    import hashlib

    files = (each for each in sorted(folder.rglob("*")) if each.is_file())
    return {str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).digest() for each in files}
