"""The toy: it has what makes resuming hard, and each difficulty is a setting."""

from __future__ import annotations

import torch
from torch_helpers import same_tensors, train

from app_trainer_sdk.testing.toys import FEATURES, ToyRows, ToyTrainer

SMALL = {"rows": 12, "validation_rows": 4, "updates": 4, "global_batch": 4, "checkpoint_every": 1000}


def test_it_learns(tmp_path):
    """A hundred updates lower the held-out loss by a quarter."""
    training = train(
        ToyTrainer, tmp_path, **{**SMALL, "rows": 40, "updates": 100}, learning_rate=0.02, evaluate_every=50
    )
    losses = [line["loss"] for line in training.evaluations()]

    assert losses[-1] < losses[0] * 0.75


def test_equal_seeds_and_other_seeds(tmp_path):
    """N4: a seed decides weights, noise and dropout; another one decides otherwise."""
    finals = [
        train(ToyTrainer, tmp_path / str(number), **SMALL, seed=seed).snapshot().section("model")
        for number, seed in enumerate((7, 7, 8))
    ]

    assert same_tensors(finals[0], finals[1])
    assert not same_tensors(finals[0], finals[2])


def test_dropout_and_noise_are_on(tmp_path):
    """Without dropout and without noise the numbers are others: both take part."""
    losses = {
        tuple(line["loss"] for line in train(ToyTrainer, tmp_path / name, **SMALL, **options).metrics())
        for name, options in {"all": {}, "dry": {"dropout": 0.0}, "still": {"noise": 0.0}}.items()
    }

    assert len(losses) == 3


def test_rows_without_units(tmp_path):
    """A share of the rows trains nothing; an update's units are those that do."""
    training = train(ToyTrainer, tmp_path, **{**SMALL, "epochs": 1, "updates": "auto"}, unit_free_share=0.05)

    assert sum(line["examples"] for line in training.metrics()) == 12
    assert 0 < sum(line["units"] for line in training.metrics()) < 12


def test_a_row_that_blows_up(tmp_path):
    """The row asked for is not a number, and only it."""
    training = train(ToyTrainer, tmp_path, **SMALL, blow_up_at=3)
    applied = [line["applied"] for line in training.metrics()]

    assert applied.count(False) == training.snapshot().values["counters"]["skipped"] >= 1


def test_items_are_pure(tmp_path):
    """An item depends on its index and its randomness alone."""
    run = train(ToyTrainer, tmp_path, **SMALL).run
    rows = ToyRows(12, run.settings)
    one, other = (rows.item(3, run.random("item", 0, 3)) for _ in range(2))

    assert torch.equal(one["x"], other["x"])
    assert one["y"] == other["y"]
    assert one["x"].shape == (FEATURES,)


def test_the_largest_batch_has_the_shape_of_a_real_one(tmp_path):
    """What planning uses looks like what training sees."""
    training = train(ToyTrainer, tmp_path, **SMALL)
    trainer, run = training.trainer, training.run
    real = trainer.collate(run, [trainer.dataset(run, "train").item(row, run.random(row)) for row in range(4)])
    made = trainer.largest_batch(run, 4)

    assert {name: (each.shape, each.dtype) for name, each in made.tensors.items()} == {
        name: (each.shape, each.dtype) for name, each in real.tensors.items()
    }
    assert made.host.keys() == real.host.keys()
