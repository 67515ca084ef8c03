"""Owns measuring what a computation really allocates on the CPU, for tests of predictions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from app_trainer_sdk.training.rehearsal import rehearse
from app_trainer_sdk.training.supervised import assemble


def allocated_peak(held, work: Callable[[], None]) -> int:
    """Most bytes that torch's CPU allocator had handed out at once during ``work``, with ``held`` before it."""
    storages = {each.untyped_storage() for each in held}
    loaded = sum({each.data_ptr(): each.nbytes() for each in storages}.values())
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so little work is slower on several
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            work()
    finally:
        torch.set_num_threads(threads)
    now = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return loaded + peak


def measured_peak(trainer, run) -> int:
    """The peak of the same rehearsal with real tensors: random weights, made from the catalog row."""
    modules = trainer.build_model(run, weights=False)
    batch = trainer.largest_batch(run, run.settings.microbatch)
    state = assemble(trainer, run, modules)
    held = [*modules.root.parameters(), *modules.root.buffers(), *batch.tensors.values()]
    held += [] if state.average is None else state.average.tensors.values()
    return allocated_peak(held, lambda: rehearse(trainer, run, state, batch))
