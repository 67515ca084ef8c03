"""The probes: what each counter says, and where one says nothing."""

from __future__ import annotations

import torch
from torch_helpers import CPU

from app_trainer_sdk.quantities import MIB
from app_trainer_sdk.training.memory import CpuProbe, probe_for


def test_the_probe_of_this_process():
    """Allocated follows what is made and dropped; resident and peak are those of the process."""
    probe = probe_for(CPU)
    before = probe.read()
    block = torch.ones(8 << 20)
    during = probe.read()
    size = block.numel() * 4
    del block
    probe.release()
    after = probe.read()

    assert isinstance(probe, CpuProbe)
    assert during.allocated - before.allocated >= size
    assert after.allocated - before.allocated < size // 4
    assert during.reserved >= during.allocated > 0
    assert probe.peak() >= during.resident - MIB > 0


def test_a_peak_starts_anew():
    """After a reset the peak is that of what follows, where the kernel allows it; else the probe says so."""
    probe = CpuProbe()
    block = torch.ones(16 << 20)
    high = probe.peak()
    del block
    probe.release()
    probe.reset()

    assert probe.peak() < high - 32 * MIB or probe.peak_of == ""


def test_an_allocator_that_does_not_count(monkeypatch):
    """A preloaded allocator leaves glibc's counters still: they are then told as 0, which proves nothing."""
    still = CpuProbe().read()
    monkeypatch.setattr(CpuProbe, "read", lambda self: still)
    probe = CpuProbe()
    monkeypatch.undo()

    assert probe.read().allocated == 0
    assert probe.read().resident > 0
