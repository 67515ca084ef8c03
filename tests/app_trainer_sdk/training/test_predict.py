"""Predictions of small models: floors by owner, and agreement with what is allocated."""

from __future__ import annotations

import pytest
from allocated import measured_peak
from torch import nn
from torch_helpers import make_trainer, run_of, squares

from app_trainer_sdk.training.dry_run import dry_run
from app_trainer_sdk.training.predict import PHASES, predict
from app_trainer_sdk.values import Modules

MILLION = 1_000_000


def wide(run):
    """Ten million numbers in one matrix."""
    return nn.Linear(2_500, 4_000, bias=False)


@pytest.mark.parametrize(
    ("settings", "megabytes"),
    [
        ({}, 160),
        ({"optimizer": "sgd", "beta1": 0.0}, 80),
        ({"optimizer": "sgd"}, 120),
        ({"optim_8bit": True}, 100),
    ],
    ids=["adamw", "sgd", "momentum", "8bit"],
)
def test_floor_before_activations(tmp_path, settings, megabytes):
    """E3: weights, gradients and the optimizer's state of ten million parameters."""
    trainer = make_trainer(wide, squares, [[0.0] * 2_500])()

    held = predict(trainer, run_of(trainer, tmp_path, **settings)).phases["step"].by_owner
    floor = held["parameters"] + held["gradients"] + held["optimizer_state"]

    assert floor == pytest.approx(megabytes * MILLION, rel=0.01)


def convolutional(run):
    """A model with buffers that move, and weights tied in two places."""
    root = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, 64, bias=False), nn.Tanh(), nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False),
    )  # fmt: skip
    root[8].weight = root[7].weight
    return Modules(root, blocks=list(root[5:]))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"gradient_accumulation_steps": 2, "ema_decay": 0.9},
        {"gradient_checkpointing": True},
        {"microbatch": 9},
    ],
    ids=["plain", "accumulation", "checkpointing", "large"],
)
def test_prediction_of_another_kind_of_model(tmp_path, settings):
    """Convolution, batch norm and tied weights. What a convolution takes inside on the CPU is not known."""
    trainer = make_trainer(convolutional, squares, [[0.0] * 64], minimum_rows=2)()
    run = run_of(trainer, tmp_path, **settings)

    predicted, measured = predict(trainer, run), measured_peak(trainer, run)

    assert predicted.peak.total == pytest.approx(measured, rel=0.05)
    assert predicted.size.parameters == 8 * 9 + 8 + 16 + 512 * 64 + 64 * 64


def test_a_prediction_tells_phases_owners_and_its_grade(tmp_path):
    trainer = make_trainer(wide, squares, [[0.0] * 2_500])()

    document = predict(trainer, run_of(trainer, tmp_path)).document()

    assert tuple(document["phases"]) == PHASES
    assert document["peak_bytes"] == sum(document["by_owner"].values()) == max(document["phases"].values())
    assert document["grade"] == "predicted, CPU kernels"
    assert document["peak_in"] in PHASES


def test_a_frozen_helper_counts_and_does_not_train(tmp_path):
    """A teacher is held all the time and has neither gradients nor state."""

    def build(run):
        return Modules(nn.Linear(10, 10, bias=False), frozen={"teacher": nn.Linear(10, 1_000, bias=False)})

    trainer = make_trainer(build, squares, [[0.0] * 10])()
    rehearsed = dry_run(trainer, run_of(trainer, tmp_path))

    assert rehearsed.size.parameters == 10_100
    assert rehearsed.size.trained == 100
    assert rehearsed.places["load"].by_owner["parameters"] == 40_400
