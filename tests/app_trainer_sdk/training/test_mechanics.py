"""A handful of rows, trained on again and again, must lower their own loss."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn
from torch_helpers import make_trainer, run_of

from app_trainer_sdk.training.mechanics import MOST_UPDATES, RATE_FACTOR, learn_a_handful, window_of

ROWS = [[1.0], [2.0], [3.0], [4.0]]


def learn(tmp_path, loss=None, **settings):
    def distance(modules, values, random):
        return (modules.root(torch.tensor(values)) - 1.0).pow(2).sum()

    trainer = make_trainer(lambda run: nn.Linear(1, 1), loss or distance, ROWS)()
    run = run_of(trainer, tmp_path, **{"learning_rate": 0.01, **settings})
    ids = numpy.arange(4)
    batch = trainer.collate(run, [(index, ROWS[index]) for index in ids])
    return learn_a_handful(trainer, run, ids, batch)


def test_what_learns_is_done_at_once(tmp_path):
    """At ten times the job's rate, and no longer than it takes."""
    told = learn(tmp_path)

    assert told["learned"]
    assert told["last"] <= told["factor"] * told["first"]
    assert told["updates"] < MOST_UPDATES
    assert (told["rows"], told["ids"], told["rate"]) == (4, [0, 1, 2, 3], pytest.approx(0.01 * RATE_FACTOR))


def test_what_does_not_learn_ends_after_some_updates(tmp_path):
    """A rate at which nothing moves."""
    told = learn(tmp_path, learning_rate=1e-12)

    assert not told["learned"]
    assert told["updates"] == MOST_UPDATES


def test_a_loss_that_is_no_number_has_not_learnt(tmp_path):
    """It is told as null."""
    told = learn(tmp_path, lambda modules, values, random: modules.root.weight.sum() * float("nan"))

    assert (told["first"], told["last"], told["learned"]) == (None, None, False)


def test_a_window_of_one_microbatch():
    """The next one begins after it."""
    window = window_of(8, numpy.arange(3), None)

    assert (window.window.position, window.window.after) == (8, 11)
    assert len(window.microbatches) == 1
