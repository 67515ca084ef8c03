"""Compile times: the same update made both ways, and a model that cannot be compiled."""

from __future__ import annotations

import functools

import numpy
import pytest
import torch
from torch import nn
from torch_helpers import make_trainer, open_training

from app_trainer_sdk.training import supervised
from app_trainer_sdk.training.compile_times import UPDATES, compile_document
from app_trainer_sdk.training.feed import Rows
from app_trainer_sdk.training.wrap import wrap


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Measure with a compiler of the test's own; what was called, and the document."""

    def measure(compiler):
        torch._dynamo.reset()
        calls = []

        def block():
            return nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def loss(modules, values, random):
            calls.append(len(values))
            return modules.root(torch.tensor(values)).pow(2).sum()

        monkeypatch.setattr(supervised, "wrap", functools.partial(wrap, backend=compiler))
        trainer = make_trainer(lambda run: block(), loss, [[1.0] * 4] * 6)
        training = open_training(
            trainer, tmp_path, updates=3, global_batch=6, microbatch=2, gradient_accumulation_steps=3
        )
        ids = numpy.arange(2)
        batch = Rows(training.trainer, training.run, training.trainer.dataset(training.run, "train"), 0)[
            0, (0, 1)
        ]
        return compile_document(training.trainer, training.run, ids, batch), calls

    yield measure
    torch._dynamo.reset()


def test_updates_are_made_both_ways(measured):
    """Some updates uncompiled and as many compiled; an update has all its microbatches."""
    graphs = []

    def compiler(graph, inputs):
        graphs.append(graph)
        return graph.forward

    told, calls = measured(compiler)

    assert sorted(told) == ["compile_seconds", "compiled_seconds", "eager_seconds"]
    assert all(seconds >= 0 for seconds in told.values())
    assert len(calls) >= 2 * (1 + UPDATES)
    assert graphs


def test_what_cannot_be_compiled_is_told(measured):
    """A missing compiler is no failed pilot."""

    def broken(graph, inputs):
        raise RuntimeError("no compiler found")

    told, _ = measured(broken)

    assert "no compiler found" in told["failed"]
