"""The twin of ``test_resume.py`` on a card: generators, optimizer state and numbers after a stop."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn
from torch_helpers import drive, make_trainer, open_training

from app_trainer_sdk.training.random_state import capture_random, random_problem, restore_random

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICE = torch.device("cuda", 0)
JOB = {
    "updates": 8, "global_batch": 4, "microbatch": 2, "learning_rate": 0.01, "evaluate_every": 0,
    "checkpoint_every": 1000, "ema_decay": 0.9,
}  # fmt: skip
#: Asked before each microbatch and after the update.
CHECKS = 3


def trained(directory, *, stop_at=0, **settings):
    """A small network with dropout and 8-bit sized layers, trained on the card."""

    def build(run):
        return nn.Sequential(nn.Linear(64, 128), nn.Dropout(0.25), nn.Linear(128, 64))

    def loss(modules, values, random):
        rows = torch.tensor(values, device=DEVICE)[:, None].expand(-1, 64)
        return (modules.root(rows) - rows).square().sum()

    trainer = make_trainer(build, loss, [0.125 * number for number in range(12)])
    training = open_training(trainer, directory, stop_at=stop_at, **{**JOB, **settings})
    training.run = dataclasses.replace(training.run, device=DEVICE)
    drive(training)
    return training


@pytest.mark.parametrize("eight_bit", [False, True])
def test_a_stop_moves_no_number(tmp_path, eight_bit):
    """Losses of a run that was stopped and taken up are those of one that was not, on the same card."""
    whole = trained(tmp_path / "whole", optim_8bit=eight_bit)
    stopped = trained(tmp_path / "parts", stop_at=3 * CHECKS, optim_8bit=eight_bit)
    made = stopped.snapshot().values["counters"]["updates"]
    resumed = trained(tmp_path / "parts", optim_8bit=eight_bit)

    assert stopped.stopped
    assert 0 < made < 8
    assert [line["ids"] for line in resumed.metrics()] == [line["ids"] for line in whole.metrics()]
    for ours, theirs in zip(resumed.metrics(), whole.metrics(), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    for name, tensor in whole.snapshot().tensors.items():
        if name.startswith(("model/", "ema/")):
            torch.testing.assert_close(resumed.snapshot().tensors[name], tensor, rtol=1e-5, atol=1e-7)


def test_the_cards_generator_goes_on():
    """What is drawn after a restore is what would have been drawn."""
    torch.empty(1, device=DEVICE)
    tensors, values = capture_random(DEVICE)
    drawn = torch.rand(8, device=DEVICE)
    torch.rand(100, device=DEVICE)

    assert random_problem(tensors, values, DEVICE) == ""
    restore_random(tensors, values, DEVICE)
    assert torch.equal(torch.rand(8, device=DEVICE), drawn)
    del tensors["device"]
    assert random_problem(tensors, values, DEVICE) == "no state of device"
