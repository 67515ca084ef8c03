"""Owns the evaluation of the ordinary loop: a split in order, batch by batch, weighed by units.

It leaves the state as it was, so that looking more often moves no number. This file must not know when an
evaluation is due or what is made of its numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training.feed import Rows, to_device
from app_trainer_sdk.training.order import cut
from app_trainer_sdk.training.randomness import Random, derive_seed, seed_torch
from app_trainer_sdk.training.state import SupervisedState
from app_trainer_sdk.training.wrap import autocast
from app_trainer_sdk.values import Batch, LossTerms, Stream

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run


def evaluate(trainer: SupervisedTrainer, run: Run, state: SupervisedState, split: str) -> Iterator[LossTerms]:
    """Loss terms of ``split`` batch by batch, in order; modes are put back, gradients are off."""
    assert run.device is not None
    if split not in state.datasets:
        state.datasets[split] = trainer.dataset(run, split)
    dataset = state.datasets[split]
    if isinstance(dataset, Stream):
        raise InternalError(
            f"the split {split} is a stream", expected="a dataset with a length: evaluation visits every row",
            setting="what dataset() returns for it",
        )  # fmt: skip
    rows = Rows(trainer, run, dataset, derive_seed(state.settings.seed, "evaluate", split))
    assert state.settings.microbatch != "auto"
    with measuring(state):
        pieces = cut(len(dataset), state.settings.microbatch)
        for first in range(0, len(pieces), state.team.size):
            run.check()
            number = first + state.team.rank
            here = pieces[number] if number < len(pieces) else None
            yield state.team.merge(_measure(trainer, run, state, rows, split, number, here))


@contextlib.contextmanager
def measuring(state: SupervisedState) -> Iterator[None]:
    """Inside, the model evaluates: no gradients, evaluation mode, the average in place where one is kept."""
    modes = [(module, module.training) for module in state.modules.root.modules()]
    state.modules.root.eval()
    weights = state.average.in_place() if state.average is not None else contextlib.nullcontext()
    try:
        with torch.no_grad(), weights:
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def measure_batch(
    trainer: SupervisedTrainer, run: Run, state: SupervisedState, batch: Batch, random: Random
) -> LossTerms:
    """Loss terms of one batch that is on the device, inside :func:`measuring`."""
    assert run.device is not None
    seed_torch(random.seed, run.device)
    with autocast(run):
        terms = trainer.measure(state.modules, batch, random)
    return _with_units(terms, batch.units)


def _measure(
    trainer: SupervisedTrainer, run: Run, state: SupervisedState, rows: Rows, split: str, number: int,
    piece: tuple[int, int] | None,
) -> LossTerms | None:  # fmt: skip
    """Loss terms of one batch; None for a rank that has none in this round."""
    if piece is None:
        return None
    assert run.device is not None
    batch = to_device(rows[0, tuple(range(*piece))], run.device)
    random = Random(
        run.random("evaluate", split, number).seed, whole=run.random("evaluate", split), first_row=piece[0]
    )
    return measure_batch(trainer, run, state, batch, random)


def _with_units(terms: LossTerms, units: float) -> LossTerms:
    """Evaluation reports the loss like any other metric: a sum and what to divide it by."""
    return LossTerms(terms.sum, terms.means, {**terms.metrics, "loss": (terms.sum, units)})
