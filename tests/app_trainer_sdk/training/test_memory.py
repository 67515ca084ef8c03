"""The ledger: what a phase held, what it gave back, and what happens when it did not."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch_helpers import CPU, StillProbe

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training.memory import MIB, RELEASE_TOLERANCE_BYTES, CpuProbe, Ledger, probe_for

MORE = RELEASE_TOLERANCE_BYTES + MIB


def ledger(*allocated, policy="report"):
    rows, probe = [], StillProbe(*allocated)
    ticks = iter(range(100))
    return Ledger(probe, rows.append, policy=policy, clock=lambda: float(next(ticks))), rows, probe


def test_a_phase_that_gives_back():
    """D1: growth within the tolerance counts as released; the row tells time, peak and both readings."""
    book, rows, probe = ledger(100, 100 + RELEASE_TOLERANCE_BYTES)
    with book.phase("encode", inputs={"rows": 3}):
        pass
    document = rows[0].document()

    assert document["verdict"] == "released"
    assert (document["phase"], document["inputs"], document["seconds"], document["peak"]) == (
        "encode", {"rows": 3}, 1.0, 7,
    )  # fmt: skip
    assert (document["before"]["allocated"], document["reused"]) == (100, False)
    assert probe.calls == ["release", "read", "reset", "peak", "release", "read"]


@pytest.mark.parametrize("policy", ["report", "warn", "raise"])
def test_a_phase_that_keeps(policy):
    """D1: what was kept is told in the row, warned of, or refused, as the job asks."""
    book, rows, _ = ledger(100, 100 + MORE, policy=policy)

    def work():
        with book.phase("encode"):
            pass

    if policy == "report":
        work()
    elif policy == "warn":
        with pytest.warns(UserWarning, match="phase encode kept 65 MiB after its end"):
            work()
    else:
        with pytest.raises(InternalError, match="phase encode kept 65 MiB"):
            work()

    assert rows[0].verdict == "kept 65 MiB"


def test_a_phase_that_holds_on_purpose():
    """A phase that made no promise to release is not blamed."""
    book, rows, _ = ledger(100, 100 + MORE, policy="raise")
    with book.phase("examine", releases=False):
        pass

    assert rows[0].verdict == "held on purpose"


def test_a_system_that_does_not_count():
    """Where allocated bytes are not counted the row says that nothing is proven."""
    book, rows, _ = ledger(0, 0, policy="raise")
    with book.phase("encode"):
        pass

    assert rows[0].verdict.startswith("unproven")


def test_a_phase_that_fails():
    """A phase that raises leaves its row, and its own error instead of a complaint about memory."""
    book, rows, _ = ledger(100, 100 + MORE, policy="raise")
    with pytest.raises(ZeroDivisionError), book.phase("encode"):
        _ = 1 / 0

    assert rows[0].verdict == "failed: ZeroDivisionError"


def test_three_modules_are_gone():
    """D1: three modules of 20 MB in a list and under three names die with the phase; 60 MB are given back."""
    rows = []
    book = Ledger(CpuProbe(), rows.append, policy="raise")

    class Holder:
        pass

    def work():
        holder = Holder()
        holder.modules = [torch.nn.Linear(2000, 2500) for _ in range(3)]
        holder.a, holder.b, holder.c = holder.modules
        held.append(CpuProbe().read().allocated)
        return [weakref.ref(each.weight) for each in holder.modules]

    held = []
    with book.phase("encode"):
        references = work()
    gc.collect()

    assert [reference() for reference in references] == [None] * 3
    assert held[0] - rows[0].after.allocated >= 60_000_000
    assert rows[0].verdict == "released"


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
