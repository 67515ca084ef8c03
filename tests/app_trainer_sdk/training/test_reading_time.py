"""Reading is measured before training, in a process that leaves nothing behind."""

from __future__ import annotations

import os
import random
import time

import numpy
import pytest
import torch
from torch import nn
from torch_helpers import drive, make_trainer, open_training, same_tensors

from app_trainer_sdk import fetching
from app_trainer_sdk.errors import StopRequested
from app_trainer_sdk.planning.workers import Reading
from app_trainer_sdk.training import reading_time
from app_trainer_sdk.training.reading_time import Took, measure_reading
from app_trainer_sdk.values import Batch

SETTINGS = {"updates": 3, "global_batch": 4, "microbatch": 2, "evaluate_every": 0}


class Noisy:
    """Rows that draw from everything there is, and count how often they were asked."""

    def __init__(self, rows=12):
        self.rows = rows
        self.asked = 0

    def __len__(self):
        return self.rows

    def item(self, index, draw):
        self.asked += 1
        random.random(), numpy.random.rand(), torch.rand(())  # what nobody should, and somebody does
        return index, float(draw.python.random())


class Slow(Noisy):
    """Rows of 30 ms, 20 of them fetching."""

    def item(self, index, draw):
        with fetching():
            time.sleep(0.02)
        time.sleep(0.01)
        return index, 1.0


def collate(self, run, items):
    values = torch.tensor([[value] for _, value in items])
    host = {"ids": [index for index, _ in items], "values": [value for _, value in items]}
    return Batch({"x": values}, units=len(items), host=host)


def trainer_of(dataset, **attributes):
    def loss(modules, values, draw):
        return (modules.root(torch.tensor(values)[:, None]) ** 2).sum()

    return make_trainer(lambda run: nn.Linear(1, 1), loss, dataset, **{"collate": collate, **attributes})


def opened(dataset, directory, **changes):
    attributes = {name: value for name, value in changes.items() if name == "collate"}
    settings = {name: value for name, value in changes.items() if name != "collate"}
    return open_training(trainer_of(dataset, **attributes), directory, **{**SETTINGS, **settings})


def test_a_run_that_was_measured_makes_the_same_numbers(tmp_path):
    """Ids, losses, weights and generators; the dataset that trains was not touched."""
    plain, measured = opened(Noisy(), tmp_path / "plain"), opened(Noisy(), tmp_path / "measured")
    dataset = measured.trainer.dataset(measured.run, "train")
    before = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state()
    found = measure_reading(measured.trainer, measured.run, most_seconds=60.0)

    assert found.rows > 0
    assert found.item_seconds > 0
    assert found.problem == ""
    assert dataset.asked == 0
    assert before[:2] == (random.getstate(), numpy.random.get_state()[1].tolist())
    assert torch.equal(before[2], torch.get_rng_state())
    for training in (plain, measured):
        drive(training)
    assert plain.metrics() == measured.metrics()
    assert same_tensors(plain.snapshot().tensors, measured.snapshot().tensors)


def test_what_is_measured(tmp_path, monkeypatch):
    """Seconds of a row, as far as it says fetching; bytes of its tensors; five microbatches are enough."""
    monkeypatch.setattr(reading_time, "READ_SECONDS", 60.0)
    training = opened(Slow(), tmp_path)
    found = measure_reading(training.trainer, training.run, most_seconds=60.0)

    assert found.rows == 10
    assert found.item_seconds >= 0.03
    assert 0.02 <= found.fetch_seconds < found.item_seconds
    assert (found.row_bytes, found.forks) == (4, True)
    assert found.copy_seconds > 0
    assert found.worker_bytes > 0


def test_a_neighbour_on_the_processor_does_not_make_rows_heavy():
    """The median of the whole batches is told: not their mean, nor rows that fill none."""
    took = Took()
    took.reads = [(0.001, 0.0), (0.003, 0.001), (0.5, 0.0), (0.5, 0.0), (0.001, 0.0), (0.001, 0.0), (9.0, 0.0)]
    found = took.told(2)

    assert (found.rows, found.item_seconds, found.fetch_seconds) == (7, 0.002, 0.0005)


class Endless(Noisy):
    """The first row never comes."""

    def item(self, index, draw):
        time.sleep(600)


class Deadly(Noisy):
    """A decoder that takes its process with it."""

    def item(self, index, draw):
        os._exit(3)


class Broken(Noisy):
    """A row that cannot be read."""

    def item(self, index, draw):
        raise OSError("row 3 is cut off")


@pytest.mark.parametrize(
    ("dataset", "found"),
    [
        (Endless(), Reading(problem="the dataset gave too little within 0.2 s")),
        (Deadly(), Reading(problem="a process of its own died reading", forks=False)),
        (Broken(), Reading(problem="OSError: row 3 is cut off", forks=False)),
    ],
)
def test_what_cannot_be_measured_is_told(dataset, found, tmp_path):
    """It ends in time, and training itself meets what is wrong."""
    training = opened(dataset, tmp_path)

    assert measure_reading(training.trainer, training.run, most_seconds=0.2 if found.forks else 60.0) == found


def test_a_wish_to_stop_ends_it(tmp_path):
    """Nobody waits for rows that will not be trained on."""
    training = opened(Endless(), tmp_path)
    training.token.request("canceled")

    with pytest.raises(StopRequested):
        measure_reading(training.trainer, training.run)


def test_a_microbatch_that_takes_too_long_is_measured_in_part(tmp_path):
    """Reading ends in the middle of it; a batch of fewer rows need not be possible."""

    def whole_batches_only(self, run, items):
        assert len(items) == 100
        return collate(self, run, items)

    training = opened(Slow(rows=200), tmp_path, collate=whole_batches_only, microbatch=100, global_batch=100)
    found = measure_reading(training.trainer, training.run, most_seconds=60.0)

    assert 0 < found.rows < 100
    assert (found.collate_seconds, found.row_bytes) == (0, 0)
    assert found.problem == ""
