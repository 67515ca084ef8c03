"""What becomes of evaluations: totals over a split, the best one, and what a checkpoint keeps of them."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch_helpers import make_trainer, open_training

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.training.drive import Desk
from app_trainer_sdk.training.evaluations import Evaluations, end_iterator


def evaluations_of(directory, validation=(1.0, 2.0, 3.0), **asked):
    """A model that answers 0 for ever, and validation rows 1, 2, 3: the loss is the mean of their squares."""

    def loss(modules, values, draw):
        rows = torch.tensor(values).unsqueeze(-1)
        return (modules.root(rows) * 0.0 - rows).pow(2).sum()

    trainer = make_trainer(lambda run: nn.Linear(1, 1), loss, [0.0] * 4, validation=list(validation))
    training = open_training(trainer, directory, updates=9, global_batch=2, microbatch=2, **asked)
    desk = Desk(training.layout, training.store, training.channel, training.token, training.plan, {})
    return Evaluations(training.trainer, training.run, desk), training


def test_a_split_is_summed_up_over_its_batches(tmp_path):
    """Batches of two and of one rows weigh by their units; a split without rows leaves no line."""
    looked, training = evaluations_of(tmp_path)
    state = training.trainer.begin(training.run, None)
    looked.add(last=True)
    looked.look(state, 4)
    (line,) = [json.loads(text) for text in training.layout.evaluations.read_text().splitlines()]

    assert (line["step"], line["split"], line["loss"]) == (4, "validation", (1 + 4 + 9) / 3)
    assert looked.pending == []
    assert (looked.best.step, looked.best.value) == (4, line["loss"])


@pytest.mark.parametrize(
    ("validation", "metric", "told"),
    [
        ((), "loss", "nothing was evaluated on the validation split; expected rows in it, to find the best by"),
        ((1.0,), "accuracy", "the evaluation has no 'accuracy'; expected one of loss"),
    ],
)
def test_a_best_that_nobody_can_find_is_refused_before_the_first_update(tmp_path, validation, metric, told):
    """Not after a quarter of the run, and never by exporting the last one without a word."""
    asked = {"validation": validation, "best_metric": metric, "export_from": "best"}
    looked, training = evaluations_of(tmp_path, **asked)
    looked.add()

    with pytest.raises(BadJob, match=told):
        looked.look(training.trainer.begin(training.run, None), 0)


def test_what_a_checkpoint_keeps_is_taken_up_again(tmp_path):
    """Pending splits, the best, why training ended; lines that were written past the checkpoint are cut."""
    first, training = evaluations_of(tmp_path, early_stopping_patience=1)
    state = training.trainer.begin(training.run, None)
    for step in (1, 2):
        first.add()
        first.look(state, step)
        first.end_early(state, step)
    first.add()
    kept = first.document()
    first.look(state, 3)
    again, _ = evaluations_of(tmp_path, early_stopping_patience=1)
    again.take_up(kept)

    assert again.pending == ["validation"]
    assert (again.best.step, again.best.without_better) == (1, 1)
    assert again.ended.startswith("1 evaluations without a better loss")
    assert len(training.layout.evaluations.read_text().splitlines()) == 2


def test_an_iterator_without_an_end_is_left_alone():
    """Only generators have one."""
    end_iterator(iter([1]))
