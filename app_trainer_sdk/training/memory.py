"""Owns reading memory: one probe for each kind of device, all with the same four questions.

Allocated (bytes handed out), reserved (bytes the allocator took from the system), driver-used and resident
are different counters and never added. This file must not know what a phase is.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch

from app_trainer_sdk.quantities import MIB

COUNTER_TEST_BYTES = 1 << 20


@dataclass(frozen=True)
class Reading:
    """Memory at one moment, in bytes; 0 where a counter does not exist."""

    allocated: int
    reserved: int
    driver: int
    resident: int


class Probe(Protocol):
    """Reads memory. Three exist: the CPU's, CUDA's, and one for tests.

    Attributes:
        device: ``cpu`` or ``cuda``: where the bytes that ``allocated`` counts lie.
        peak_of: the counter of :class:`Reading` that :meth:`peak` is a peak of, or empty when the peak is
            that of the whole process.
    """

    device: str
    peak_of: Literal["allocated", "resident", ""]

    def read(self) -> Reading:
        """Memory now, after the device has caught up."""
        ...

    def peak(self) -> int:
        """Most bytes held at once since :meth:`reset`."""
        ...

    def reset(self) -> None:
        """Start a new peak."""
        ...

    def release(self) -> None:
        """Hand free memory back to the system; garbage is collected before."""
        ...


class _MallInfo2(ctypes.Structure):
    """glibc's ``struct mallinfo2``; all sizes in bytes."""

    names = (
        "arena",
        "ordblks",
        "smblks",
        "hblks",
        "hblkhd",
        "usmblks",
        "fsmblks",
        "uordblks",
        "fordblks",
        "keepcost",
    )
    _fields_ = [(name, ctypes.c_size_t) for name in names]


class CpuProbe:
    """Memory of this process: glibc's counters, and the resident set with its high-water mark.

    Where malloc is not glibc's (musl, a preloaded allocator) ``allocated`` is 0 and proves nothing.
    """

    device = "cpu"

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._trims = hasattr(self._libc, "malloc_trim")
        self.peak_of: Literal["allocated", "resident", ""] = "resident"
        self._counts = hasattr(self._libc, "mallinfo2")
        if self._counts:
            self._libc.mallinfo2.restype = _MallInfo2
            before = self.read().allocated
            block = ctypes.create_string_buffer(COUNTER_TEST_BYTES)
            self._counts = self.read().allocated - before >= COUNTER_TEST_BYTES
            del block

    def read(self) -> Reading:
        """Memory now. ``allocated`` is what malloc handed out, mapped blocks included."""
        allocated = reserved = 0
        if self._counts:
            info = self._libc.mallinfo2()
            allocated, reserved = info.uordblks + info.hblkhd, info.arena + info.hblkhd
        return Reading(allocated, reserved, 0, _status_bytes("VmRSS"))

    def peak(self) -> int:
        """Highest resident set since :meth:`reset`: malloc keeps no peak of its own."""
        return _status_bytes("VmHWM")

    def reset(self) -> None:
        """Start a new peak, where the kernel lets a process do so."""
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self.peak_of = ""  # the peak is then that of the whole process, which is still an upper bound

    def release(self) -> None:
        """Trim the heap."""
        if self._trims:
            self._libc.malloc_trim(0)


class CudaProbe:
    """Memory of one card as torch's allocator and the driver count it."""

    device = "cuda"
    peak_of: Literal["allocated", "resident", ""] = "allocated"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def read(self) -> Reading:
        """Memory now, after the device has finished what was asked of it."""
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        return Reading(
            torch.cuda.memory_allocated(self._device), torch.cuda.memory_reserved(self._device), total - free,
            _status_bytes("VmRSS"),
        )  # fmt: skip

    def peak(self) -> int:
        """Most bytes allocated by torch at once, when the device has finished: seconds are read after it."""
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device)

    def reset(self) -> None:
        """Start a new peak."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def release(self) -> None:
        """Give up the workspaces of cuBLAS, which it takes anew, and empty torch's cache. Blocks that garbage
        still owns would stay reserved: collect before.
        """
        torch._C._cuda_clearCublasWorkspaces()  # up to 400 MiB that would look like a phase's
        torch.cuda.empty_cache()


def probe_for(device: torch.device) -> Probe:
    """The probe of a device."""
    return CudaProbe(device) if device.type == "cuda" else CpuProbe()


def told_memory(device: torch.device) -> dict[str, int]:
    """What progress tells, in MiB: this process, and on a card the allocator's peak since the phase began and
    all that the driver handed out. Costs no synchronisation; read where the device has caught up anyway.
    """
    told = {"rss_mib": _status_bytes("VmRSS") // MIB}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        told["peak_reserved_mib"] = torch.cuda.max_memory_reserved(device) // MIB
        told["driver_mib"] = (total - free) // MIB
    return told


def _status_bytes(name: str) -> int:
    """A size from ``/proc/self/status``, or 0 where there is none."""
    try:
        with open("/proc/self/status", encoding="ascii") as file:  # noqa: PTH123 - read often, opened cheaply
            for line in file:
                if line.startswith(name + ":"):
                    return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0
