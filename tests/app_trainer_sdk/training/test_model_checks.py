"""What a model must be before it trains."""

from __future__ import annotations

import pytest
import torch
from small_models import PLAIN, Scalars
from torch import nn
from torch_helpers import make_trainer, open_training

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training import supervised


def expanded():
    model = Scalars(1.0)
    model.w = nn.Parameter(torch.ones(1).expand(6))
    return model


@pytest.mark.parametrize(
    ("build", "settings", "told"),
    [
        (lambda: nn.LazyLinear(2), {}, "weight has no shape before the first forward; expected a model that a"),
        (lambda: nn.Sequential(nn.Embedding(4, 2, sparse=True)), {}, "the embedding 0 has sparse gradients"),
        (expanded, {}, "elements of w share memory, as expand leaves them; expected each its own"),
        (lambda: Scalars(1.0).half(), {"mixed_precision": "fp16"}, "w would train in fp16 under a loss scale"),
        (lambda: nn.BatchNorm1d(1), {}, "minimum_rows = 2"),
    ],
)
def test_a_model_that_would_fail_later_is_refused_when_it_is_built(tmp_path, build, settings, told):
    """Not after the first update, and never only on resume: the parameter and what to change are named."""
    trainer = make_trainer(lambda run: build(), lambda modules, values, random: None, [0] * 4)
    training = open_training(trainer, tmp_path, updates=1, global_batch=4, settings=settings, **PLAIN)

    with pytest.raises(InternalError, match=told):
        supervised.begin(training.trainer, training.run, None)
