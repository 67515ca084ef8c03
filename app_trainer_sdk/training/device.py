"""Owns every question asked of the device and its processor; nobody else asks torch what it runs on.

It must not know what will run there.
"""

from __future__ import annotations

import contextlib
import contextvars
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.gpus import Card
from app_trainer_sdk.limits import host_memory, processors, shared_memory
from app_trainer_sdk.plan import DeviceFacts
from app_trainer_sdk.preflight.present import present_cards

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


def _cards_of_this_torch() -> Sequence[Card]:
    """Cards that this torch was built for and that nobody hides from it, as their driver tells of them."""
    return present_cards() if torch.version.cuda or torch.version.hip else ()


def pick_device(
    local_rank: int = 0, *, cards: Callable[[], Sequence[Card]] = _cards_of_this_torch
) -> torch.device:  # fmt: skip
    """The accelerator of this rank, or the CPU where there is none.

    Args:
        local_rank: its number on this machine.
        cards: tells, where torch finds no accelerator, those it should find.

    Raises:
        HardwareUnfit: there are accelerators, but fewer than ranks; or torch cannot use those there are.
    """
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise HardwareUnfit(
                f"rank {local_rank} has no GPU of its own: this machine has {count}",
                expected=f"at most {count} ranks", setting="--ranks",
            )  # fmt: skip
        return torch.device("cuda", local_rank)
    if there := cards():
        raise HardwareUnfit(
            f"torch {torch.__version__} cannot use the {there[0].title} that is here: {_why_not()}",
            expected="a card whose driver serves this torch (on a machine of several, its fabric manager too)",
            setting="the machine, or CUDA_VISIBLE_DEVICES to nothing to train on processors",
        )  # fmt: skip
    return torch.device("cpu")


def has_bf16(device: torch.device) -> bool:
    """Whether a card computes in bf16 itself; torch tells it of the current card alone."""
    with torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


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
    memory = properties.total_memory
    return DeviceFacts(device.type, properties.name, bf16=has_bf16(device), memory_bytes=memory, **host)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what was asked; nothing to wait for on the CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _why_not() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except Exception as error:  # noqa: BLE001 - whatever torch or the driver raises is the answer
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
    return "it sees none"
