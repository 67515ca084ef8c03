"""Owns the evaluation of the ordinary loop: a split in order, batch by batch, weighed by units.

It leaves the state as it was, so that looking more often moves no number. When memory runs out, a batch is
measured in smaller parts, which add up to the same sums and counts. This file must not know when an evaluation
is due or what is made of its numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from app_trainer_sdk.errors import InternalError, refuse_other
from app_trainer_sdk.training import oom
from app_trainer_sdk.training.feed import Rows, to_device
from app_trainer_sdk.training.interrupts import interruptible
from app_trainer_sdk.training.order import cut
from app_trainer_sdk.training.randomness import Random, derive_seed, seed_torch
from app_trainer_sdk.training.state import SupervisedState
from app_trainer_sdk.training.wrap import autocast
from app_trainer_sdk.values import JSON, Batch, Dataset, LossTerms, Stream

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run


def evaluate(trainer: SupervisedTrainer, run: Run, state: SupervisedState, split: str) -> Iterator[LossTerms]:
    """Loss terms of ``split`` batch by batch, in order; modes are put back, gradients are off."""
    assert run.device is not None
    dataset = opened(trainer, run, state, split)
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


def opened(trainer: SupervisedTrainer, run: Run, state: SupervisedState, split: str) -> Dataset | Stream:
    """The rows of ``split``, opened the first time and kept for as long as the state."""
    if split not in state.datasets:
        state.datasets[split] = trainer.dataset(run, split)
    return state.datasets[split]


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
        terms = refuse_other(trainer.measure(state.modules, batch, random), LossTerms, "measure")
    return _with_units(terms, batch.units)


def _measure(
    trainer: SupervisedTrainer, run: Run, state: SupervisedState, rows: Rows, split: str, number: int,
    piece: tuple[int, int] | None,
) -> LossTerms | None:  # fmt: skip
    """Loss terms of one batch; None for a rank that has none in this round.

    A part of it that does not fit is halved, here alone: what ranks measure adds up however each does it.

    Raises:
        GpuOutOfMemory: there is nothing left to halve; or HostOutOfMemory.
    """
    if piece is None:
        return None
    recovered: list[dict[str, JSON]] = []
    while True:
        most = min(piece[1] - piece[0], state.measured_rows or piece[1])
        shortage = None
        try:
            parts = _parts(trainer, run, state, rows, split, number, piece, most)
        except Exception as error:
            if not oom.is_out_of_memory(error):
                raise
            shortage = oom.shortage_of(error)
        if shortage is None:
            return _added(parts, recovered)
        recovered.append(_make_room(trainer, run, state, rows, split, piece[0], most, shortage))


def _parts(
    trainer: SupervisedTrainer, run: Run, state: SupervisedState, rows: Rows, split: str, number: int,
    piece: tuple[int, int], most: int,
) -> list[LossTerms]:  # fmt: skip
    """Loss terms of a batch, in parts of at most so many rows."""
    assert run.device is not None
    parts: list[LossTerms] = []
    for first in range(*piece, most):
        if parts:
            run.check()
        last = min(first + most, piece[1])
        place = (number,) if (first, last) == piece else (number, first)
        random = run.random("evaluate", split, *place).part_of(run.random("evaluate", split), first)
        batch = to_device(rows[0, tuple(range(first, last))], run.device)
        with interruptible(really=state.team.size == 1):
            parts.append(measure_batch(trainer, run, state, batch, random))
        del batch
    return parts


def _make_room(
    trainer: SupervisedTrainer, run: Run, state: SupervisedState, rows: Rows, split: str, first: int, most: int,
    shortage: oom.Shortage,
) -> dict[str, JSON]:  # fmt: skip
    """Measure half as many rows at once from now on; the variant, for the record."""
    assert run.device is not None
    inputs = oom.described(rows[0, tuple(range(first, first + most))], most)
    if trainer.coupled_rows or most <= 1:
        why_not = oom.COUPLED if trainer.coupled_rows else "one row is the least"
        what = f"the evaluation of {split} in phase train with {most} rows at once"
        raise oom.refusal(trainer, run, state, shortage, inputs, why_not, what)
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
    state.measured_rows = most // 2
    return {"split": split, "microbatch": most, "next": most // 2, "error": shortage.text, "inputs": inputs}


def _added(parts: Sequence[LossTerms], recovered: Sequence[dict[str, JSON]]) -> LossTerms:
    """The terms of a batch from those of its parts."""
    if len(parts) == 1:
        return parts[0]
    metrics = dict(parts[0].metrics)
    for part in parts[1:]:
        for name, (total, count) in part.metrics.items():
            before = metrics.get(name, (0.0, 0.0))
            metrics[name] = (before[0] + total, before[1] + count)
    total = torch.stack([part.sum for part in parts]).sum()
    return LossTerms(total, metrics=metrics, recovered=recovered)


def _with_units(terms: LossTerms, units: float) -> LossTerms:
    """Evaluation reports the loss like any other metric: a sum and what to divide it by."""
    return LossTerms(terms.sum, terms.means, {**terms.metrics, "loss": (terms.sum, units)})
