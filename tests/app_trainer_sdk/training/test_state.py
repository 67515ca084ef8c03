"""What lives during training becomes a snapshot and comes back."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch_helpers import make_trainer, run_of, same_tensors, squares

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.training.state import Counters, refuse_other_order, restore, snapshot

ROWS = [[float(number)] for number in range(8)]


def begun(tmp_path, **settings):
    trainer = make_trainer(lambda run: nn.Linear(1, 1), squares, ROWS)()
    return trainer.begin(run_of(trainer, tmp_path, **settings), None)


def stepped(state):
    state.modules.root(torch.ones(2, 1)).sum().backward()
    state.optimizer.step()
    return state


def test_a_snapshot_put_back_is_the_same_snapshot(tmp_path):
    """Weights, moments, the average of weights and all counters."""
    state = stepped(begun(tmp_path, ema_decay=0.9))
    state.counters = Counters(position=6, updates=3, skipped=1, units=6.0)
    saved = snapshot(state)
    other = begun(tmp_path, ema_decay=0.9)
    restore(other, saved)
    again = snapshot(other)

    assert {name.split("/")[0] for name in saved.tensors} == {"model", "optimizer", "ema"}
    assert same_tensors(saved.tensors, again.tensors)
    assert again.values == saved.values
    assert other.counters == state.counters


def test_a_microbatch_that_had_to_be_smaller_stays_so(tmp_path):
    """One that was planned smaller meanwhile is not made larger again."""
    state = begun(tmp_path, microbatch=4)
    state.use_microbatch(2)
    saved = snapshot(state)
    same, smaller = begun(tmp_path, microbatch=4), begun(tmp_path, microbatch=1)
    for other in (same, smaller):
        restore(other, saved)

    assert (same.settings.microbatch, smaller.settings.microbatch) == (2, 1)


def test_gradients_that_are_there(tmp_path):
    """In the order of the parameters, and none once they are dropped."""
    state = begun(tmp_path)
    state.parameters[1].grad = torch.ones(1)

    assert [each.tolist() for each in state.gradients()] == [[1.0]]
    state.drop_gradients()
    assert state.gradients() == []


def test_another_order_of_rows_is_refused(tmp_path):
    """Unless this resume was allowed to change something."""
    state = begun(tmp_path)
    saved = snapshot(state)
    other = dataclasses.replace(saved, values={**saved.values, "order": {"digest": "another"}})
    refuse_other_order(state.order, saved, [])
    refuse_other_order(state.order, other, [{"step": 0}])
    with pytest.raises(BadJob, match="'another', as in the checkpoint"):
        refuse_other_order(state.order, other, [])
