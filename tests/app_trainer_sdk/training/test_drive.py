"""What happens between two updates: cadence, evaluation, checkpoints, stops, and what is said of them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random

import numpy
import pytest
import torch
from small_models import Wanderer
from torch import nn
from torch_helpers import drive, make_trainer, open_training, same_tensors, train

from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.errors import Diverged, InternalError, StopRequested
from app_trainer_sdk.training.drive import is_due
from app_trainer_sdk.values import Snapshot, StepInfo

JOB = {"updates": 6, "global_batch": 2, "evaluate_every": 0, "checkpoint_every": 1000, "warmup_updates": 0}


def walk_on(self, run, state):
    while True:
        state["at"] = state["at"] + torch.randn(2) + random.random() + float(numpy.random.rand())
        state["step"] += 1
        yield StepInfo(state["step"], state["at"].sum())


def line_trainer(**options):
    def loss(modules, values, draw):
        return (modules.root(torch.tensor(values).unsqueeze(-1)) - 1.0).pow(2).sum()

    return make_trainer(lambda run: nn.Linear(1, 1), loss, [0.1 * row for row in range(12)], **options)


@pytest.mark.parametrize(
    ("tensor", "finite"),
    [
        (torch.ones(2).to(torch.float8_e4m3fn), True),
        (torch.tensor([1.0, math.nan]).to(torch.float8_e4m3fn), False),
        (torch.tensor([1.0, complex(0, math.inf)]), False),
        (torch.tensor([1, 2]), True),
    ],
)
def test_weights_of_any_kind_are_looked_at(tmp_path, tensor, finite):
    """N1: what is not finite never becomes a checkpoint, of eight bits or complex; whole numbers always are."""
    trainer = type(
        "Kinds", (Trainer,), {**vars(Wanderer), "snapshot": lambda self, state: Snapshot({"model/at": tensor})}
    )
    there = contextlib.nullcontext() if finite else pytest.raises(Diverged, match="the weight at is not finite")
    with there:
        train(trainer, tmp_path, **{**JOB, "updates": 1})


@pytest.mark.parametrize(
    ("step", "every", "last", "due"),
    [(4, 2, 9, True), (5, 2, 9, False), (9, 2, 9, True), (9, 0, 9, True), (4, 0, 9, False), (1, 1, 9, True)],
)
def test_due(step, every, last, due):
    """Every N updates, and always after the last one; N = 0 is the last one only."""
    assert is_due(step, every, last) is due


def test_checkpoints_by_cadence(tmp_path):
    """Checkpoints are made every N updates and at the end, told, and the oldest removed."""
    training = train(line_trainer(), tmp_path, **{**JOB, "checkpoint_every": 2}, checkpoints_kept=2)
    said = [facts for kind, facts in training.channel.said if kind == "checkpoint"]

    assert [each["step"] for each in said] == [2, 4, 6]
    assert said[-1]["name"] == "step-00000006"
    assert said[-1]["bytes"] == training.store.newest()[0].size_bytes > 0
    assert [each.step for each in training.store.find()] == [6, 4]


def test_evaluations_by_cadence(tmp_path):
    """Validation is looked at before the first update, every N and at the end; the test split at the end."""
    trainer = line_trainer(validation=[0.5, 0.6])
    looked = train(trainer, tmp_path / "1", **{**JOB, "evaluate_every": 4})
    never = train(trainer, tmp_path / "2", **JOB)

    assert [line["step"] for line in looked.evaluations()] == [0, 4, 6]
    assert [line["step"] for line in never.evaluations()] == [6]
    assert {line["split"] for line in looked.evaluations()} == {"validation"}  # its test split is empty
    said = [facts for kind, facts in looked.channel.said if kind == "evaluation"]
    assert [each["loss"] for each in said] == [line["loss"] for line in looked.evaluations()]


def test_progress_ends_at_the_last_update(tmp_path):
    """Whatever the pace, the last progress is the last update, with its numbers."""
    training = train(line_trainer(), tmp_path, **JOB)
    first, *_, last = [facts for kind, facts in training.channel.said if kind == "progress"]

    assert (first["step"], first["eta_seconds"], last["eta_seconds"]) == (1, None, 0.0)  # one update is no pace
    assert (last["step"], last["total"]) == (6, 6)
    assert last["metrics"]["loss"] == training.metrics()[-1]["loss"]
    assert last["nonfinite"] == []


@pytest.mark.parametrize(
    ("reason", "checkpoint", "saved"),
    [("interrupted", True, [3]), ("canceled", True, [3]), ("interrupted", False, []), ("peer", True, [])],
)
def test_a_stop_saves_unless_it_must_not(tmp_path, reason, checkpoint, saved):
    """L4: who asks to stop gets a checkpoint of the last update; a hurried one and a dead peer get none."""
    training = open_training(line_trainer(), tmp_path, **JOB)

    def check():
        if training.token.checks == 5:  # two for each update, so the next is the last of the third
            training.token.request(reason, checkpoint=checkpoint)
        training.token.place()

    training.run = dataclasses.replace(training.run, check=check)
    drive(training)

    assert training.stopped
    assert [each.step for each in training.store.find()] == saved
    assert len(training.metrics()) == 3


def test_a_stop_while_nothing_is_made_yet(tmp_path):
    """L4: stopped before the first update, the job starts again from its first row and is the same."""
    trainer = line_trainer()
    whole = train(trainer, tmp_path / "whole", **JOB)
    first = train(trainer, tmp_path / "cut", stop_at=1, **JOB)
    made = first.metrics()
    second = train(trainer, tmp_path / "cut", **JOB)

    assert (first.stopped, made) == (True, [])
    assert second.metrics() == whole.metrics()


class TestOwnLoop:
    JOB = {"updates": 6, "checkpoint_every": 1000}  # noqa: RUF012

    def test_seeded_by_the_job(self, tmp_path):
        """N4: global draws of a trainer's own loop follow the job's seed, whatever ran before it."""
        runs = []
        for number, seed in enumerate((1, 2, 1)):
            random.seed(number)
            numpy.random.seed(number)
            torch.manual_seed(number)
            runs.append(train(Wanderer, tmp_path / str(number), seed=seed, **self.JOB).metrics())

        assert runs[0] == runs[2] != runs[1]

    def test_resumed_exactly(self, tmp_path):
        """B3: the generators go on where the checkpoint left them."""
        whole = train(Wanderer, tmp_path / "whole", **self.JOB)
        first = train(Wanderer, tmp_path / "cut", stop_at=3, **self.JOB)
        second = train(Wanderer, tmp_path / "cut", **self.JOB)

        assert first.stopped
        assert second.metrics() == whole.metrics()
        assert second.evaluations() == whole.evaluations()
        assert same_tensors(second.snapshot().section("model"), whole.snapshot().section("model"))

    def test_evaluation_moves_no_number(self, tmp_path):
        """N3: looking after every update instead of at the end changes no draw of the loop."""
        seldom = train(Wanderer, tmp_path / "1", evaluate_every=0, **self.JOB)
        often = train(Wanderer, tmp_path / "2", evaluate_every=1, **self.JOB)

        assert often.metrics() == seldom.metrics()
        assert often.evaluations()[-1] == seldom.evaluations()[-1]

    def test_a_loop_without_an_end_is_ended(self, tmp_path):
        """B2: the plan says how many updates there are, not the loop; the last one is evaluated and saved."""
        endless = type("Endless", (Trainer,), {**vars(Wanderer), "training_steps": walk_on})
        training = train(endless, tmp_path, **self.JOB)

        assert training.metrics() == train(Wanderer, tmp_path / "ended", **self.JOB).metrics()
        assert training.store.newest()[0].step == self.JOB["updates"]

    def test_a_loop_that_miscounts_is_told(self, tmp_path):
        """B1: one that begins at 1 again after a resume would write its updates twice."""
        miscounting = {"training_steps": lambda self, run, state: iter([StepInfo(1, 1.0), StepInfo(1, 1.0)])}
        trainer = type("Miscounting", (Trainer,), {**vars(Wanderer), **miscounting})
        with pytest.raises(InternalError, match="told of update 1 after update 1; expected 2; change StepInfo"):
            train(trainer, tmp_path, **self.JOB)

    def test_the_generator_is_closed(self, tmp_path):
        """D4: after a stop the loop's own ``finally`` has run, so its locals hold no memory."""
        Wanderer.closed.clear()
        train(Wanderer, tmp_path, stop_at=3, evaluate_every=0, **self.JOB)

        assert Wanderer.closed == [3]

    def test_a_loop_that_ends_early(self, tmp_path):
        """B2: a loop that ends while updates remain is an error, not a success."""
        training = open_training(Wanderer, tmp_path, **self.JOB)
        settings = training.run.settings.model_copy(update={"updates": 4})
        training.run = dataclasses.replace(training.run, settings=settings)

        with pytest.raises(InternalError, match="training ended after 4 updates; expected 6"):
            drive(training)


def test_stops_are_no_errors():
    """A wish to stop passes every ``except Exception`` of a trainer."""
    assert not issubclass(StopRequested, Exception)
