"""Optimizers of a process that compiles nothing: torch's numbers, without its compiler."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from app_trainer_sdk.training.uncompiled import leave_compiler_out

WORK = """
import json, sys, torch
from app_trainer_sdk.training.uncompiled import leave_compiler_out

def moved(kind, **options):
    parameter = torch.nn.Parameter(torch.linspace(-1, 1, 7))
    optimizer = kind([parameter], lr=0.1, **options)
    for number in range(3):
        optimizer.zero_grad()
        (parameter ** 2).sum().backward()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.step(lambda: parameter.sum()).requires_grad
    return parameter.tolist()

def all_kinds():
    adam, sgd = torch.optim.AdamW, torch.optim.SGD
    return [moved(adam), moved(adam, fused=True), moved(sgd, momentum=0.9)]
"""
LEFT_OUT = "leave_compiler_out(); leave_compiler_out(); told = all_kinds(), 'torch._dynamo' in sys.modules\n"
TORCHS_OWN = "told = all_kinds(), 'torch._dynamo' in sys.modules\n"


def answer(*lines: str) -> list:
    code = WORK + "".join(f"{line}print(json.dumps(told))\n" for line in lines)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_numbers_are_torch_s_without_its_compiler():
    """Three kinds are built, make steps, keep and take their state; the compiler is imported by none of it,
    and once somebody imports it all is as torch does it, with the same numbers.
    """  # fmt: skip
    (without, imported), (torchs, with_compiler) = answer(LEFT_OUT, "import torch._dynamo; " + TORCHS_OWN)

    assert (imported, with_compiler) == (False, True)
    assert without == torchs
    assert without[0] == pytest.approx(without[1], rel=1e-6)


def test_what_torch_wraps_is_there():
    """It has nothing to do, and may go, when this fails: torch wraps steps and parameter groups no more."""
    leave_compiler_out()

    assert torch.optim.Optimizer.add_param_group.leaves_compiler_out
    assert torch.optim.Optimizer.zero_grad.__wrapped__
