"""Owns every question asked of the device and its processor; nobody else asks torch what it runs on."""

from __future__ import annotations

import platform
from typing import Any

import torch

from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.limits import processors, shared_memory
from app_trainer_sdk.plan import DeviceFacts

DTYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


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
