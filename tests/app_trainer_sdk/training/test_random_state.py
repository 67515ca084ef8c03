"""The global generators as tensors and JSON, there and back."""

from __future__ import annotations

import json
import random

import numpy
import pytest
import torch
from torch_helpers import CPU, in_new_process

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training.checkpoint import CheckpointStore, load_checkpoint
from app_trainer_sdk.training.random_state import capture_random, random_problem, restore_random
from app_trainer_sdk.values import Snapshot


def draws():
    return (
        [random.random() for _ in range(3)], random.gauss(0, 1), numpy.random.rand(3).tolist(),
        float(numpy.random.randn()), torch.rand(3).tolist(), torch.randn(3).tolist(),
    )  # fmt: skip


def disturb():
    """Leave each generator in the middle of something: a cached gauss, half a block of words."""
    random.seed(1)
    numpy.random.seed(2)
    torch.manual_seed(3)
    random.gauss(0, 1)
    numpy.random.randn(3)
    torch.randn(5)


def test_there_and_back():
    """The draws after restoring are those after capturing, values passed through JSON."""
    disturb()
    tensors, values = capture_random(CPU)
    values = json.loads(json.dumps(values))
    expected = draws()
    draws()
    restore_random(tensors, values, CPU)

    assert draws() == expected


def test_in_a_new_process(tmp_path):
    """The same through a checkpoint, in a process whose generators never saw this one's."""
    disturb()
    tensors, values = capture_random(CPU)
    snapshot = Snapshot({f"random/{name}": each for name, each in tensors.items()}, {"random": values})
    CheckpointStore(tmp_path, "mine").save(1, snapshot, {})

    assert in_new_process(_resumed_draws, str(tmp_path)) == draws()


def _resumed_draws(directory):
    checkpoint, _ = CheckpointStore(directory_path(directory), "mine").newest()
    saved = load_checkpoint(checkpoint)
    restore_random(saved.section("random"), saved.values["random"], CPU)
    return draws()


def directory_path(text):
    from pathlib import Path

    return Path(text)


@pytest.mark.parametrize("name", ["python", "numpy", "torch"])
def test_a_part_is_missing(name):
    """Half a random state is refused: a resume from it would not be exact."""
    tensors, values = capture_random(CPU)
    tensors.pop(name)

    with pytest.raises(InternalError, match=f"has no state of {name}"):
        restore_random(tensors, values, CPU)


def test_values_are_missing():
    """The plain half of the state is missed as well."""
    tensors, values = capture_random(CPU)

    with pytest.raises(InternalError, match="has no state of numpy"):
        restore_random(tensors, {"python": values["python"]}, CPU)


@pytest.mark.parametrize(
    ("name", "state", "told"),
    [
        ("torch", torch.zeros(16, dtype=torch.uint8), "torch as torch.uint8 (16,), here torch.uint8"),
        ("numpy", torch.zeros(624), "numpy as torch.float32 (624,), here torch.int64 (624,)"),
    ],
)
def test_another_versions_form(name, state, told):
    """A state that this version's generators cannot take is told before anything is put back."""
    tensors, values = capture_random(CPU)
    before = draws()

    assert random_problem({**tensors, name: state}, values, CPU).startswith(told)
    assert random_problem(tensors, {**values, "python": [2, None]}, CPU) == "python of kind 2, here 3"
    assert random_problem(tensors, values, CPU) == ""
    restore_random(tensors, values, CPU)
    assert draws() == before
