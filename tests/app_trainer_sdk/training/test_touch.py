"""The device computes before anything large is loaded, and nothing of it stays."""

from __future__ import annotations

import pytest
import torch

from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training import touch
from app_trainer_sdk.training.touch import touch_device

CPU = torch.device("cpu")


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("narrow", [True, False])
def test_each_optimizer_makes_its_step(optimizer, narrow):
    """N3: no random number is drawn."""
    before = torch.get_rng_state()
    touch_device(CPU, Hyperparameters(optimizer=optimizer, optim_8bit=narrow and optimizer == "adamw"))

    assert torch.equal(torch.get_rng_state(), before)


def test_a_trainer_with_its_own_optimizer_needs_none():
    touch_device(CPU, None)


def test_a_device_that_fails_is_unfit_with_the_cause():
    """A card that is not there, as a driver says it: 78, whatever torch raised."""
    with pytest.raises(HardwareUnfit, match="cuda") as told:
        touch_device(torch.device("cuda:7"), Hyperparameters())

    assert told.value.code == 78
    assert told.value.__cause__ is not None


def test_a_step_that_does_not_move_is_no_step(monkeypatch):
    """As with kernels that do nothing; a job's own small rate is not the device's fault."""
    touch_device(CPU, Hyperparameters(learning_rate=1e-12))
    monkeypatch.setattr(touch, "build_optimizer", lambda groups, *others: torch.optim.SGD(groups, lr=0.0))

    with pytest.raises(HardwareUnfit, match="left weights where they were"):
        touch_device(CPU, Hyperparameters())
