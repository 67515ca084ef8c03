"""Owns reading memory and the row each phase leaves: what it held, what it gave back.

Allocated (bytes handed out), reserved (bytes the allocator took from the system), driver-used and resident
are different counters and never added. This file must not know what a phase does.
"""

from __future__ import annotations

import ctypes
import gc
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from app_trainer_sdk.errors import InternalError

MIB = 1 << 20

#: The first pass of a phase leaves library state behind (imports, thread pools, kernel caches: 24 MiB were
#: seen for a first training step); only more than this is told as kept.
RELEASE_TOLERANCE_BYTES = 64 * MIB


@dataclass(frozen=True)
class Reading:
    """Memory at one moment, in bytes; 0 where a counter does not exist."""

    allocated: int
    reserved: int
    driver: int
    resident: int


class Probe(Protocol):
    """Reads memory. Three exist: the CPU's, CUDA's, and a recording one for tests."""

    def read(self) -> Reading:
        """Memory now, after the device has caught up."""
        ...

    def peak(self) -> int:
        """Most bytes allocated at once since :meth:`reset`."""
        ...

    def reset(self) -> None:
        """Start a new peak."""
        ...

    def release(self) -> None:
        """Collect garbage and hand free memory back to the system."""
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
    """Memory of this process: glibc's counters, and the resident set with its high-water mark."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)
        self._counts = hasattr(self._libc, "mallinfo2")
        if self._counts:
            self._libc.mallinfo2.restype = _MallInfo2

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
            return  # the peak is then that of the whole process, which is still an upper bound

    def release(self) -> None:
        """Collect garbage and trim the heap."""
        gc.collect()
        if self._counts:
            self._libc.malloc_trim(0)


class CudaProbe:
    """Memory of one card as torch's allocator and the driver count it."""

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
        """Most bytes allocated by torch at once."""
        return torch.cuda.max_memory_allocated(self._device)

    def reset(self) -> None:
        """Start a new peak."""
        torch.cuda.reset_peak_memory_stats(self._device)

    def release(self) -> None:
        """Collect garbage, then empty torch's cache: in this order, or blocks still owned stay reserved."""
        gc.collect()
        torch.cuda.empty_cache()


def probe_for(device: torch.device) -> Probe:
    """The probe of a device."""
    return CudaProbe(device) if device.type == "cuda" else CpuProbe()


@dataclass
class Row:
    """What one phase did with memory and time; one line of ``phases.jsonl``. Bytes and seconds."""

    phase: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    before: Reading | None = None
    after: Reading | None = None
    peak: int = 0
    seconds: float = 0.0
    verdict: str = ""
    reused: bool = False

    def document(self) -> dict[str, Any]:
        """The row as JSON."""
        readings = {"before": self.before, "after": self.after}
        told = {name: vars(reading) for name, reading in readings.items() if reading is not None}
        facts = {"phase": self.phase, "inputs": dict(self.inputs), "peak": self.peak, "seconds": self.seconds}
        return {**facts, **told, "verdict": self.verdict, "reused": self.reused}


class Ledger:
    """Measures phases and writes a row for each.

    Args:
        probe: reads memory.
        write: takes a finished row.
        policy: what happens when a phase that promised to release did not.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        probe: Probe,
        write: Callable[[Row], None],
        *,
        policy: Literal["report", "warn", "raise"] = "warn",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._probe = probe
        self._write = write
        self._policy = policy
        self._clock = clock

    @contextmanager
    def phase(
        self, name: str, *, inputs: Mapping[str, Any] | None = None, releases: bool = True
    ) -> Iterator[Row]:
        """Measure what happens inside.

        Args:
            name: the phase.
            inputs: what went in, for the row.
            releases: whether everything made inside should be gone afterwards.
        """
        row = Row(name, inputs or {})
        self._probe.release()
        row.before = self._probe.read()
        self._probe.reset()
        started = self._clock()
        try:
            yield row
        except BaseException as error:
            row.verdict = f"failed: {type(error).__name__}"
            raise
        finally:
            row.peak = self._probe.peak()
            row.seconds = self._clock() - started
            self._probe.release()
            row.after = self._probe.read()
            row.verdict = row.verdict or _verdict(row, releases)
            self._write(row)
        self._complain(row)

    def _complain(self, row: Row) -> None:
        if not row.verdict.startswith("kept"):
            return
        sentence = f"phase {row.phase} {row.verdict} after its end"
        if self._policy == "raise":
            raise InternalError(
                sentence,
                expected="everything made inside to be gone",
                setting="/hyperparameters/memory_release",
            )
        if self._policy == "warn":
            warnings.warn(sentence, stacklevel=3)


def _verdict(row: Row, releases: bool) -> str:
    if not releases:
        return "held on purpose"
    assert row.before is not None
    assert row.after is not None
    if not row.after.allocated:
        return "unproven: this system does not count allocated bytes"
    kept = row.after.allocated - row.before.allocated
    return "released" if kept <= RELEASE_TOLERANCE_BYTES else f"kept {kept / MIB:,.0f} MiB"


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
