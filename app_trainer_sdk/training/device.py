"""Owns every question asked of the device and its processor; nobody else asks torch what it runs on."""

from __future__ import annotations

import contextlib
import contextvars
import platform
from collections.abc import Iterator
from typing import Any

import torch

from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.limits import host_memory, processors, shared_memory
from app_trainer_sdk.plan import DeviceFacts

DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


_planned: contextvars.ContextVar[str] = contextvars.ContextVar("planned", default="")


def kind_of(tensor: torch.Tensor) -> str:
    """The type of the device a tensor lives on; of the one it would live on, while memory is predicted.

    For code that chooses sizes by device. A choice of kernels asks the tensor itself.
    """
    return _planned.get() or tensor.device.type


@contextlib.contextmanager
def planned_for(kind: str) -> Iterator[None]:
    """Inside, :func:`kind_of` answers ``kind``: a prediction for a card is computed without one."""
    token = _planned.set(kind)
    try:
        yield
    finally:
        _planned.reset(token)


def pick_device(local_rank: int = 0) -> torch.device:
    """The accelerator of this rank, or the CPU where there is none.

    Raises:
        HardwareUnfit: there are accelerators, but fewer than ranks.
    """
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise HardwareUnfit(
                f"rank {local_rank} has no GPU of its own: this machine has {count}",
                expected=f"at most {count} ranks", setting="--ranks",
            )  # fmt: skip
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def device_facts(device: torch.device) -> DeviceFacts:
    """What the plan needs to know of ``device``."""
    usable = processors()
    host: dict[str, Any] = {
        "cores": usable.count, "cores_why": usable.why, "shared_memory_bytes": shared_memory(),
        "host_memory_bytes": host_memory().usable_bytes,
        "kernels": torch.backends.cpu.get_cpu_capability(),
    }  # fmt: skip
    if device.type == "cpu":
        return DeviceFacts("cpu", platform.processor() or platform.machine(), bf16=False, **host)
    properties = torch.cuda.get_device_properties(device)
    bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    return DeviceFacts(device.type, properties.name, bf16=bf16, memory_bytes=properties.total_memory, **host)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was asked; nothing to wait for on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
