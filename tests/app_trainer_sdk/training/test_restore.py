"""A checkpoint taken up in a new process, and what of it differs."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn
from torch_helpers import make_trainer, run_of

from app_trainer_sdk.training.restore import different, evaluate_longest
from app_trainer_sdk.values import LossTerms

ONES = {"model/a": torch.ones(2, 3), "model/b": torch.tensor(float("nan"))}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, []), ({"model/a": torch.zeros(2, 3)}, ["model/a"]), ({"model/a": torch.ones(3, 2)}, ["model/a"]),
        ({"model/a": torch.ones(2, 3, dtype=torch.float64)}, ["model/a"]),
        ({"model/c": torch.ones(1)}, ["model/c"]),
        ({"model/a": torch.ones(3, 2).t()}, []), ({"model/b": torch.tensor(-0.0)}, ["model/b"]),
    ],
)  # fmt: skip
def test_bits_dtype_and_shape_must_be_the_same(change, names):
    """Also of what is not a number, and however it lies in memory; a tensor on one side alone is named."""
    other = {**ONES, **change}

    assert different(ONES, other) == different(other, ONES) == names


def test_the_longest_batch_is_evaluated(tmp_path):
    """Without dropout, and without a trace."""
    trainer = make_trainer(
        lambda run: nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)),
        lambda modules, values, random: (modules.root(torch.tensor(values)) - 1.0).pow(2).sum(),
        [[2.0]],
    )()  # fmt: skip
    run = run_of(trainer, tmp_path, microbatch=4)
    state = trainer.begin(run, None)
    first, second = evaluate_longest(trainer, run, state), evaluate_longest(trainer, run, state)

    assert first == second
    assert first.keys() == {"loss"}
    assert state.modules.root.training


def test_a_loop_of_its_own_is_asked_for_its_first_batches():
    """Of the validation split; one that evaluates nothing tells nothing."""
    asked = []

    class Looper:
        def evaluate(self, run, state, split):
            for number in range(5):
                asked.append(split)
                yield LossTerms(torch.tensor(1.0), metrics={f"m{number}": (number, 2)})

    told = evaluate_longest(Looper(), types.SimpleNamespace(), None)

    assert told == {"m0": 0.0, "m1": 0.5}
    assert asked == ["validation", "validation"]
