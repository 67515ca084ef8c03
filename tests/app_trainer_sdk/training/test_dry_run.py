"""A model is built without memory."""

from __future__ import annotations

import pytest
from torch import nn
from torch_helpers import make_trainer, run_of, squares

from app_trainer_sdk.training.predict import predict


def test_nothing_of_the_model_is_in_memory(tmp_path):
    """A terabyte of parameters is planned as quickly as a kilobyte."""
    trainer = make_trainer(lambda run: nn.Linear(500_000, 500_000, bias=False), squares, [[0.0] * 500_000])()

    predicted = predict(trainer, run_of(trainer, tmp_path))

    assert predicted.phases["load"].by_owner["parameters"] == 10**12
    assert predicted.snapshot_bytes == pytest.approx(3 * 10**12)
