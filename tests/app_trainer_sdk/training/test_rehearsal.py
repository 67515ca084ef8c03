"""A rehearsal makes real updates, and refuses to prove anything by one that was not made."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest
import torch
from small_models import PLAIN, adapted_trainer
from test_predict import run_of
from test_whole_step import Card, short_of
from torch import nn
from torch_helpers import StillProbe, drive, make_trainer, open_training, same_tensors, train

from app_trainer_sdk.errors import GpuOutOfMemory, InternalError
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.rehearsal import UPDATES, rehearse
from app_trainer_sdk.training.supervised import assemble, begin


def rehearsed(trainer, run):
    """The state after a rehearsal, and the places it told."""
    modules = trainer.build_model(run, weights=False)
    state = assemble(trainer, run, modules)
    places = []
    rehearse(trainer, run, state, trainer.largest_batch(run, run.settings.microbatch), mark=places.append)
    return state, places


def test_two_updates_are_made_and_one_evaluation(tmp_path):
    """E3: the second update is the first one that meets the optimizer's state."""
    trainer = make_trainer(lambda run: nn.Linear(3, 1), squares, [[1.0, 2.0, 3.0]])()

    state, places = rehearsed(trainer, run_of(trainer, tmp_path, gradient_accumulation_steps=4))

    assert state.counters.updates == UPDATES == 2
    assert places == ["update 1", "update 2", "evaluate"]
    assert len(state.optimizer.state) == 2
    assert len(trainer.trained) == 1 + 2  # two microbatches stand for four: the second meets gradients already


def test_an_update_that_is_not_made_proves_nothing(tmp_path):
    trainer = make_trainer(
        lambda run: nn.Linear(3, 1), lambda *each: squares(*each) * float("nan"), [[1.0, 2.0, 3.0]]
    )()

    with pytest.raises(InternalError, match="rehearsed update 1 was not made"):
        rehearsed(trainer, run_of(trainer, tmp_path))


def test_a_batch_of_nothing_is_no_success(tmp_path):
    """E4: with nothing to train on no update is made, whatever ran before, and nothing was proven."""
    trainer = make_trainer(lambda run: nn.Linear(3, 1), squares, [[1.0, 2.0, 3.0]], units=lambda value: 0.0)()

    with pytest.raises(InternalError, match="rehearsed update 1 was not made: no unit to train on"):
        rehearsed(trainer, run_of(trainer, tmp_path))
    assert trainer.trained == []


def test_a_step_without_memory_fails_its_row(tmp_path):
    """E3: memory that runs out in the first step marks that place as failed, with 79; nothing after it ran."""
    trainer = make_trainer(lambda run: nn.Linear(3, 1), squares, [[1.0, 2.0, 3.0]])()
    run = run_of(trainer, tmp_path)
    state = assemble(trainer, run, trainer.build_model(run, weights=False))
    found = []
    book = Ledger(StillProbe(), found.append, policy="report")
    batch = trainer.largest_batch(run, run.settings.microbatch)
    with short_of(Card(0, fits=0)), pytest.raises(GpuOutOfMemory) as caught, ExitStack() as places:
        rehearse(
            trainer, run, state, batch,
            mark=lambda place: places.enter_context(book.phase(place, releases=False)),
        )  # fmt: skip

    assert caught.value.code == 79
    assert "no memory for update 1" in str(caught.value)
    assert {row.phase: row.verdict for row in found} == {"update 1": "failed: GpuOutOfMemory"}
    assert not state.optimizer.state


def test_a_rehearsal_leaves_no_trace(tmp_path):
    """N3: rows of a pilot, the last one out of memory, change no number of a run in the same process."""
    settings = {**PLAIN, "optimizer": "adamw", "beta1": 0.9, "microbatch": 2, "updates": 4, "global_batch": 4}
    plain = train(adapted_trainer(validation=[1, 2]), tmp_path / "plain", **settings)
    made = adapted_trainer(validation=[1, 2])
    piloted = open_training(made, tmp_path / "piloted", **settings)
    for card in (Card(0, fits=99), Card(0, fits=99), Card(0, fits=99), Card(0, fits=0)):
        state = begin(piloted.trainer, piloted.run, None)
        batch = piloted.trainer.largest_batch(piloted.run, 2)
        with short_of(card), suppress(GpuOutOfMemory):
            rehearse(piloted.trainer, piloted.run, state, batch)
    left = [each for each in piloted.layout.root.rglob("*") if each.is_file()]
    drive(piloted)

    assert left == []
    assert same_tensors(piloted.snapshot().tensors, plain.snapshot().tensors)
    assert piloted.snapshot().values["counters"] == plain.snapshot().values["counters"]
    assert piloted.metrics() == plain.metrics()
    assert piloted.evaluations() == plain.evaluations()


def squares(modules, values, random):
    return modules.root(torch.tensor(values)).pow(2).sum()
