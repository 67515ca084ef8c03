"""Promises of supervised trainers, each judged by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from app_trainer_sdk.testing import Asked, supervised_promises
from app_trainer_sdk.testing.subject import Subject
from app_trainer_sdk.testing.verdict import BrokenPromise, NotApplicable


@pytest.fixture
def subject(tmp_path, monkeypatch):
    """A trainer, opened."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    return lambda name, **settings: Subject(Asked(name, hyperparameters=settings), tmp_path)


@pytest.mark.parametrize("promise", ["items", "collate", "loss", "splits", "largest_batch"])
def test_a_toy_keeps_every_one(subject, promise):
    """Noise and dropout are no obstacle."""
    toy = subject("app_trainer_sdk.testing.toys:ToyTrainer", dropout=0.5, noise=1.0)

    getattr(supervised_promises, promise)(toy)


def test_coupled_rows_are_never_split(subject):
    """A contrastive loss says so, and the promise does not apply."""
    with pytest.raises(NotApplicable, match="coupled_rows: this loss is never split"):
        supervised_promises.splits(subject("broken_trainers:Coupled"))


def test_a_largest_batch_that_is_none_says_what_to_change(subject):
    """A real batch must not be heavier than what plan and pilot are told."""
    with pytest.raises(BrokenPromise, match="no real batch to be heavier"):
        supervised_promises.largest_batch(subject("broken_trainers:LightLargest"))
