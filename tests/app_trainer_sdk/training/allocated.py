"""Owns measuring what a rehearsal really allocates on the CPU, for tests of predictions."""

from __future__ import annotations

import torch

from app_trainer_sdk.training import allocated
from app_trainer_sdk.training.dry_run import uncollected
from app_trainer_sdk.training.rehearsal import rehearse
from app_trainer_sdk.training.supervised import assemble


def allocated_peak(held, work):
    """Most bytes handed out at once during ``work``, with ``held`` before it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so little work is slower on several
    try:
        with uncollected():
            return allocated.allocated_peak(held, work)
    finally:
        torch.set_num_threads(threads)


def measured_peak(trainer, run) -> int:
    """The peak of the same rehearsal with real tensors: random weights, made from the catalog row."""
    modules = trainer.build_model(run, weights=False)
    batch = trainer.largest_batch(run, run.settings.microbatch)
    state = assemble(trainer, run, modules)
    held = [*modules.root.parameters(), *modules.root.buffers(), *batch.tensors.values()]
    held += [] if state.average is None else state.average.memory
    return allocated_peak(held, lambda: rehearse(trainer, run, state, batch))
