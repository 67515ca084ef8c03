"""Splits are proven with noise held constant; the function that authors call fails as an assertion."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from app_trainer_sdk.testing import Asked, assert_split_invariant
from app_trainer_sdk.testing.splits import HeldNoise, _splits
from app_trainer_sdk.testing.subject import Subject
from app_trainer_sdk.testing.verdict import NotApplicable


@pytest.fixture
def subject(tmp_path, monkeypatch):
    """A trainer of this folder, opened."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    return lambda name, **settings: Subject(Asked(name, hyperparameters=settings), tmp_path)


def test_a_sum_is_split_invariant(subject):
    """Dropout and noise in the toy's loss are no obstacle."""
    toy = subject("app_trainer_sdk.testing.toys:ToyTrainer", dropout=0.5, noise=1.0)

    assert assert_split_invariant(toy.trainer, toy.run, rows=7) < 1e-5


def test_what_trains_in_half_precision_is_judged_by_it(subject):
    """Gradients that are added up in bf16 are rounded at each part: no fault of the loss."""
    narrow = subject("broken_trainers:Narrow")

    assert 1e-3 < assert_split_invariant(narrow.trainer, narrow.run) < 5e-2


def test_a_mean_fails_as_an_assertion(subject):
    """Authors call it in a test of their own."""
    broken = subject("broken_trainers:MeanLoss")

    with pytest.raises(AssertionError, match=r"cut into microbatches of 3 \+ 3 rows"):
        assert_split_invariant(broken.trainer, broken.run, rows=6)


def test_one_row_cannot_be_split(subject):
    """There is nothing to assert, which is said and not passed over."""
    toy = subject("app_trainer_sdk.testing.toys:ToyTrainer")

    with pytest.raises(NotApplicable, match="1 rows with minimum_rows 1 cannot be split"):
        assert_split_invariant(toy.trainer, toy.run, rows=1)


def test_pieces_keep_the_least_rows():
    """A model with batch norm never sees one row."""
    assert _splits(8, 1) == [[(0, 4), (4, 8)], [(0, 7), (7, 8)], [(at, at + 1) for at in range(8)]]
    assert all(end - start >= 2 for split in _splits(7, 2) for start, end in split)


def test_held_noise_does_not_depend_on_the_shape():
    """Every random function gives one constant, and dropout passes its input through."""
    x = torch.arange(6.0)
    with HeldNoise():
        drawn = [
            torch.randn(3), torch.rand(3), torch.randn_like(x), torch.rand_like(x), torch.empty(2).normal_(),
            torch.randint(0, 1000, (4,)), torch.randint(1000, (2,), generator=torch.Generator()),
        ]  # fmt: skip
        passed = functional.dropout(x, 0.5, training=True)

    assert [each.unique().tolist() for each in drawn] == [[0.5]] * 5 + [[500]] * 2
    assert torch.equal(x, passed)
    assert torch.rand(3).unique().numel() == 3
