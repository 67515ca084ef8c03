"""Owns measuring what a computation really allocates at once: exact bytes, on the CPU and on a card.

The CPU's allocator keeps no peak of its own, so there torch's profiler counts every block, which slows what it
watches. This file must not know what is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile


def allocated_peak(held: Iterable[Tensor], work: Callable[[], None], device: torch.device) -> int:
    """Most bytes that torch's allocator had handed out at once during ``work``.

    Args:
        held: tensors that live before; on a card the allocator knows of them itself.
        work: what is measured.
        device: whose allocator is asked.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
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
