"""Preparation phases rehearsed without data: what a trainer tells of them is what is predicted."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_helpers import CPU, make_trainer, squares

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.handle import Run
from app_trainer_sdk.training.phase_rehearsal import rehearse_phases
from app_trainer_sdk.values import PhaseShapes

WIDTH, ROWS = 256, 64


def encoding(run):
    """A frozen layer over the largest batch."""
    return PhaseShapes(
        build=lambda: nn.Linear(WIDTH, WIDTH, bias=False).to(run.dtype),
        batch=lambda: {"rows": torch.zeros(ROWS, WIDTH, dtype=run.dtype)},
        work=lambda module, batch: module(batch["rows"]).float(),
    )


def rehearsed(told, tmp_path, dtype=torch.float32):
    trainer = make_trainer(
        lambda run: nn.Linear(2, 2), squares, [[0.0] * 2], preparation=("convert", "encode"), phase_shapes=told
    )
    run = Run(
        settings=None, model=trainer.models[0], method="full", directory=tmp_path, cache=tmp_path, device=CPU,
        dtype=dtype,
    )  # fmt: skip
    return rehearse_phases(trainer(), run)


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 4), (torch.bfloat16, 2)], ids=["fp32", "bf16"])
def test_a_phase_holds_its_module_its_batch_and_what_it_makes(tmp_path, dtype, size):
    held = rehearsed(lambda self, run: {"convert": None, "encode": encoding(run)}, tmp_path, dtype)

    assert held.keys() == {"encode"}
    by_owner = held["encode"].by_owner
    assert by_owner["parameters"] == WIDTH * WIDTH * size
    assert by_owner["batch"] == ROWS * WIDTH * size
    assert by_owner["temporaries"] == ROWS * WIDTH * (size if size == 4 else size + 4)


def test_a_phase_that_is_none_of_the_trainers_is_refused(tmp_path):
    with pytest.raises(InternalError, match="told of 'encod'"):
        rehearsed(lambda self, run: {"encod": encoding(run)}, tmp_path)
