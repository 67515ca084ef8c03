"""Owns the pilot: one complete pass of every operation that a run will do, each measured, before a long run.

``python -m app_trainer_sdk.training.pilot START.json CHANNEL_FD [MEETING_FD]``, as the supervisor starts ranks.
It works in a directory of its own and leaves nothing in the job's: a run after it makes the numbers of one
without. This file must not know what its measurements mean; ``pilot_verdict.py`` does.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy

from app_trainer_sdk import __version__
from app_trainer_sdk.checkpoints import IDENTITY, PLAN, Checkpoint
from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.files import read_json, read_lines, remove_tree, sha256_tree
from app_trainer_sdk.handle import Run
from app_trainer_sdk.pilot_verdict import PILOT_SCHEMA, RESTORED_TOLERANCE
from app_trainer_sdk.start import START
from app_trainer_sdk.training.checkpoint import copied, load_checkpoint
from app_trainer_sdk.training.compile_times import compile_document
from app_trainer_sdk.training.ema import averaged
from app_trainer_sdk.training.evaluation import opened
from app_trainer_sdk.training.feed import Rows
from app_trainer_sdk.training.handover import ask_again, export_artifacts, run_module
from app_trainer_sdk.training.mechanics import learn_a_handful
from app_trainer_sdk.training.opening import identity_of
from app_trainer_sdk.training.pilot_training import (
    compare_prediction,
    measure_evaluation,
    measure_longest,
    measure_updates,
)
from app_trainer_sdk.training.rank import Rank, Ready, serve
from app_trainer_sdk.training.rank_signals import end_process
from app_trainer_sdk.training.restore import evaluate_longest
from app_trainer_sdk.values import Batch, Dataset, Snapshot, Stream

HANDFUL = 8
SHOWN = 3


def pilot(rank: Rank) -> dict[str, Any]:
    """Do everything once; the facts of the outcome. Rank 0's hold the measurements."""
    ready = rank.prepare(policy="report")
    run = rank.connect(ready.opened)
    measured: dict[str, Any] = {}
    with ready.ledger.phase("train"):
        checkpoint, evaluated = _train(rank, ready, run, measured)
    if checkpoint is None:
        return {"rank": rank.team.rank}
    if rank.team.size == 1:
        compare_prediction(ready, measured)
    _restore(rank, ready, checkpoint, evaluated, measured)
    _hand_over(rank, ready, checkpoint, measured)
    if rank.team.size == 1:
        _learn(rank, ready, measured)
        _compile(rank, ready, measured)
    for folder in (rank.layout.checkpoints, rank.layout.artifacts):
        remove_tree(folder)
    return {"step": measured["updates"]["measured"], "pilot": {**_about(rank, ready), **measured}}


def _train(
    rank: Rank, ready: Ready, run: Run, measured: dict[str, Any]
) -> tuple[Checkpoint | None, dict[str, Any]]:
    """Load, update, evaluate, save; rank 0's checkpoint, and what the longest batch evaluated to before it."""
    trainer, ledger = ready.opened.trainer, ready.ledger
    rank.enter("load")
    with ledger.phase("load", releases=False):
        state = trainer.begin(run, None)
        if isinstance(trainer, SupervisedTrainer):
            opened(
                trainer, run, state, "validation"
            )  # what a dataset holds stays; what evaluating adds must not
    longest = None
    if isinstance(trainer, SupervisedTrainer):
        longest = measure_longest(rank, ready, trainer, run, state, measured)
    rank.enter("updates")
    with ledger.phase("updates", releases=False):
        measured["updates"] = measure_updates(rank, ready, run, state, longest)
    rank.enter("evaluation")
    with ledger.phase("evaluation"):
        measured["evaluation"] = measure_evaluation(rank, ready, run, state)
        evaluated = evaluate_longest(trainer, run, state)
    return _save(rank, ready, state, measured) if rank.team.speaks else None, evaluated


def _save(rank: Rank, ready: Ready, state: Any, measured: dict[str, Any]) -> Checkpoint:
    rank.enter("save")
    with ready.ledger.phase("save"):
        saved, measured["checkpoint"] = _written(rank, ready, state)
    return saved


def _written(rank: Rank, ready: Ready, state: Any) -> tuple[Checkpoint, dict[str, Any]]:
    """A checkpoint, and what it took; the copy of the state is gone afterwards."""
    identity = identity_of(ready.opened, rank.start, ready.plan)
    started = time.perf_counter()
    snapshot = copied(ready.opened.trainer.snapshot(state))
    stall = time.perf_counter() - started
    values = {**snapshot.values, "driver": {"step": 0}}
    documents = {PLAN: ready.plan.document(), IDENTITY: identity}
    saved = ready.store.save(0, Snapshot(snapshot.tensors, values), documents)
    seconds = time.perf_counter() - started
    return saved, {"stall_seconds": stall, "write_seconds": seconds, "bytes": saved.size_bytes}


def _restore(
    rank: Rank, ready: Ready, checkpoint: Checkpoint, evaluated: Mapping[str, Any], measured: dict[str, Any]
) -> None:
    """Take the checkpoint up in a new process and compare."""
    rank.enter("restore")
    attempt = rank.layout.attempt(rank.start.attempt)
    answer = attempt / "restored.json"
    module = "app_trainer_sdk.training.restore"
    with ready.ledger.phase("restore"):
        code = run_module(module, attempt / START, checkpoint.path, answer, check=rank.token.check)
    if code:
        raise InternalError("the checkpoint could not be taken up in a new process", expected="exit code 0")
    told = read_json(answer)
    there = told["evaluation"]
    measured["restore"] = {
        "tensors": told["tensors"], "different": told["different"], "tolerance": RESTORED_TOLERANCE,
        "evaluation_here": dict(evaluated), "evaluation_there": there,
        "evaluation_equal": evaluated.keys() == there.keys()
        and all(_close(evaluated[name], there[name]) for name in there),
    }  # fmt: skip


def _hand_over(rank: Rank, ready: Ready, checkpoint: Checkpoint, measured: dict[str, Any]) -> None:
    rank.enter("export")
    with ready.ledger.phase("export"):
        artifact = export_artifacts(ready.opened, averaged(load_checkpoint(checkpoint)), rank.layout)
    outputs = {each.name: sha256_tree(each)[1] for each in sorted(rank.layout.artifacts.iterdir())}
    rank.enter("replay")
    with ready.ledger.phase("replay"):
        replay = ask_again(artifact, rank.start, rank.token.check)
    measured |= {"outputs": outputs, "replay": replay}


def _learn(rank: Rank, ready: Ready, measured: dict[str, Any]) -> None:
    """A handful of the rows that training begins with, shown and learnt."""
    run = ready.opened.run
    if (rows := _training_rows(ready)) is None:
        return
    trainer, dataset = rows
    rank.enter("mechanics")
    ids, batch = _first_rows(trainer, run, dataset, min(HANDFUL, run.settings.microbatch))
    measured["shown"] = list(trainer.show(run, batch))[:SHOWN]
    with ready.ledger.phase("mechanics"):
        measured["mechanics"] = learn_a_handful(trainer, run, ids, batch)


def _compile(rank: Rank, ready: Ready, measured: dict[str, Any]) -> None:
    """Whether compiling pays, where nobody has decided it; on a card alone, on the CPU it takes minutes."""
    run = ready.opened.run
    assert run.device is not None
    if ready.opened.asked.torch_compile != "auto" or run.device.type == "cpu":
        return
    if (rows := _training_rows(ready)) is None:
        return
    trainer, dataset = rows
    rank.enter("compile")
    ids, batch = _first_rows(trainer, run, dataset, run.settings.microbatch)
    with ready.ledger.phase("compile", releases=False):
        measured["compile"] = compile_document(trainer, run, ids, batch)


def _training_rows(ready: Ready) -> tuple[SupervisedTrainer, Dataset] | None:
    """The trainer and its training split, where it has rows that can be asked for."""
    trainer = ready.opened.trainer
    if not isinstance(trainer, SupervisedTrainer):
        return None
    dataset = trainer.dataset(ready.opened.run, "train")
    return None if isinstance(dataset, Stream) else (trainer, dataset)


def _first_rows(
    trainer: SupervisedTrainer, run: Run, dataset: Dataset, count: int
) -> tuple[numpy.ndarray, Batch]:
    """Numbers and batch of the first rows that training begins with."""
    ids = numpy.arange(max(trainer.minimum_rows, min(count, len(dataset))), dtype=numpy.int64)
    return ids, Rows(trainer, run, dataset, run.settings.seed)[0, tuple(ids.tolist())]


def _about(rank: Rank, ready: Ready) -> dict[str, Any]:
    """What was measured, on what, and the rows of all ranks."""
    plan, facts = ready.plan, ready.opened.facts
    knobs: dict[str, Any] = {name: knob.effective for name, knob in plan.settings.items()}
    others = sorted(rank.layout.root.glob(f"attempts/{rank.start.attempt}/rank-*/{rank.layout.phases.name}"))
    rows = [row for path in (rank.layout.phases, *others) for row in read_lines(path)]
    evaluated = int(knobs["evaluate_every"] or plan.updates)
    return {
        "schema": PILOT_SCHEMA, "sdk": __version__, "job_id": rank.start.read_job().identifier(),
        "run": {
            "trainer": plan.trainer, "trainer_version": plan.trainer_version, "model": plan.model,
            "method": plan.method, "device": plan.device, "batch": plan.batch, "updates": plan.updates,
            "replicas": plan.replicas,
            "evaluations": 1 + math.ceil(plan.updates / evaluated),
            "checkpoints": math.ceil(plan.updates / int(knobs["checkpoint_every"])),
        },
        "device": dataclasses.asdict(facts), "settings": knobs,
        "preparation": list(ready.opened.trainer.preparation),
        "phases": rows, "data": dict(ready.opened.examination.facts), "shown": [], "mechanics": None,
        "predicted": None, "compile": None,
    }  # fmt: skip


def _close(here: float | None, there: float | None) -> bool:
    if here is None or there is None:
        return here is there
    return math.isclose(here, there, rel_tol=RESTORED_TOLERANCE, abs_tol=1e-9)


if __name__ == "__main__":
    end_process(serve(sys.argv[1:], pilot))
