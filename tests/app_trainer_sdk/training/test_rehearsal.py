"""A rehearsal makes real updates, and refuses to prove anything by one that was not made."""

from __future__ import annotations

import pytest
import torch
from test_predict import run_of
from torch import nn
from torch_helpers import make_trainer

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training.rehearsal import UPDATES, rehearse
from app_trainer_sdk.training.supervised import assemble


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


def squares(modules, values, random):
    return modules.root(torch.tensor(values)).pow(2).sum()
