"""What the SDK asks of the device, on a machine without one."""

from __future__ import annotations

import os

import pytest
import torch

from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.gpus import find_card
from app_trainer_sdk.training.device import DTYPES, device_facts, pick_device, synchronize

CPU_ONLY = pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without an accelerator")


@CPU_ONLY
def test_the_processor_is_the_device():
    """Without an accelerator the CPU is picked, and waiting for it is nothing."""
    device = pick_device()
    synchronize(device)

    assert device == torch.device("cpu")


@CPU_ONLY
def test_a_card_that_torch_cannot_use_is_told():
    """The driver shows it and torch finds none, as without a fabric manager: no processor trains instead."""
    found = "cannot use the NVIDIA H200 141 GB that is here: "
    with pytest.raises(HardwareUnfit, match=found):
        pick_device(cards=lambda: [find_card("H200")])


def test_facts_of_the_processor():
    """M2: cores are those this process may use; kernels name the instruction set; no memory is claimed."""
    facts = device_facts(torch.device("cpu"))

    assert (facts.kind, facts.bf16, facts.memory_bytes) == ("cpu", False, 0)
    assert 1 <= facts.cores <= len(os.sched_getaffinity(0))
    assert "processors" in facts.cores_why
    assert facts.kernels
    assert facts.name


def test_precisions():
    """Every precision a plan may name has its dtype."""
    assert {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16} == DTYPES
