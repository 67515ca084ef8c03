"""A model is built without memory."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_helpers import CPU, make_trainer

from app_trainer_sdk.handle import Run
from app_trainer_sdk.training.predict import predict


def run_of(trainer, tmp_path, **settings):
    """A run with every setting decided."""
    decided = {
        "updates": 4, "warmup_updates": 0, "microbatch": 2, "gradient_accumulation_steps": 1,
        "torch_compile": False, "optim_8bit": False, "gradient_checkpointing": False, "mixed_precision": "no",
        **settings,
    }  # fmt: skip
    decided["global_batch"] = decided["microbatch"] * decided["gradient_accumulation_steps"]
    return Run(
        settings=trainer.hyperparameters_class.read(decided), model=trainer.models[0], method="full",
        directory=tmp_path, cache=tmp_path, device=CPU, dtype=torch.float32,
    )  # fmt: skip


def squares(modules, values, random):
    return modules.root(torch.tensor(values)).pow(2).sum()


def test_nothing_of_the_model_is_in_memory(tmp_path):
    """A terabyte of parameters is planned as quickly as a kilobyte."""
    trainer = make_trainer(lambda run: nn.Linear(500_000, 500_000, bias=False), squares, [[0.0] * 500_000])()

    predicted = predict(trainer, run_of(trainer, tmp_path))

    assert predicted.phases["load"].by_owner["parameters"] == 10**12
    assert predicted.snapshot_bytes == pytest.approx(3 * 10**12)
