"""Owns measuring what a computation really allocates at once on the CPU, in exact bytes.

The CPU's allocator keeps no peak of its own, as a card's does: torch's profiler counts every block, which slows
what it watches. This file must not know what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def allocated_peak(held: Iterable[Tensor], work: Callable[[], None]) -> int:
    """Most bytes that torch's allocator had handed out at once during ``work``.

    Args:
        held: tensors that live before.
        work: what is measured.
    """
    storages = {each.untyped_storage() for each in held}
    loaded = sum({each.data_ptr(): each.nbytes() for each in storages}.values())
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    now = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return loaded + peak
