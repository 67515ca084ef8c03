"""Owns the promises about the ordinary loop: items, batches, the loss and its splits.

As in ``promises.py``, each is one short function; for a trainer with a loop of its own all of them say that
they do not apply. This file must not know how results are shown. Importing it does not import torch.
"""

from __future__ import annotations

import itertools
import json
import math
from typing import TYPE_CHECKING, Any

from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.testing.subject import Subject, refuse_if_not
from app_trainer_sdk.testing.training_rows import training_rows
from app_trainer_sdk.testing.verdict import BrokenPromise
from app_trainer_sdk.values import Batch, LossTerms, Stream

if TYPE_CHECKING:
    from app_trainer_sdk.training.feed import Rows


def items(subject: Subject) -> str | None:
    """``item`` is a pure function of index and random, and leaves the global generators alone.

    A dataset that says ``uses_global_random`` gets them seeded for each item, and may draw from them. A stream
    resumes as it says: from its state, or with the same records when it is read again.
    """
    from app_trainer_sdk.testing.compare import first_difference, global_states, moved_generators

    trainer, run = subject.supervised()
    _refuse_other_records(trainer, run)
    dataset, again = training_rows(trainer, run), training_rows(trainer, run)
    declared = bool(getattr(dataset, "uses_global_random", False))
    last = len(dataset) - 1
    indices = sorted({0, last // 2, last})
    first = {}
    for index in indices:
        before = global_states()
        first[index] = _item(dataset, index, run, declared)
        moved = [] if declared else moved_generators(before)
        if moved:
            raise BrokenPromise(
                f"item {index} moved the global generator of {' and '.join(moved)}",
                expected="draws from `random` alone: random.python, random.numpy or random.torch()",
                setting="item, or uses_global_random = True in the dataset",
            )  # fmt: skip
    for index in reversed(indices):
        for source, when in ((dataset, "asked again"), (again, "asked of a new dataset in another order")):
            difference = first_difference(first[index], _item(source, index, run, declared), f"item {index}")
            if difference:
                raise BrokenPromise(
                    f"{difference} when {when}", expected="equal values for equal index and random",
                    setting="item: it keeps state between calls, or draws from a generator of its own",
                )  # fmt: skip
    return None


def collate(subject: Subject) -> str:
    """``collate`` makes a batch of CPU tensors, counts its units on the host, and some rows have units."""
    from torch import Tensor

    read, size = _rows(subject)
    total, count = 0.0, min(len(read.dataset), 4 * size)
    for start in range(0, count, size):
        refuse_if_not(batch := read[0, tuple(range(start, min(start + size, count)))], Batch, "collate")
        wrong = [name for name, each in batch.tensors.items() if not isinstance(each, Tensor) or each.is_cuda]
        if wrong or not batch.tensors:
            raise BrokenPromise(
                f"collate gives {', '.join(wrong) or 'no tensors'}", expected="tensors on the CPU by name",
                setting="Batch(tensors=...), and Batch(host=...) for what is no tensor",
            )  # fmt: skip
        if not isinstance(batch.units, int | float) or not math.isfinite(batch.units) or batch.units < 0:
            raise BrokenPromise(f"collate counts {batch.units!r} units", expected="a number, 0 or more")
        total += batch.units
    if not total:
        raise BrokenPromise(
            f"the first {count} rows have no unit", expected="something to divide the loss by",
            setting="what collate counts as units",
        )  # fmt: skip
    return f"{total:g} units in {count} rows"


def loss(subject: Subject) -> str | None:
    """``loss`` gives one sum and depends on the batch and on what it may draw from.

    It may draw from ``random``, and from torch's own generator, which the SDK seeds for each microbatch: that
    is where dropout draws. It must not draw from the global generators of python and numpy.
    """
    from app_trainer_sdk.testing.compare import first_difference, global_states, moved_generators

    trainer, run = subject.supervised()
    read, size = _rows(subject)
    count = min(size, len(read.dataset))
    modules = trainer.begin(run, None).modules
    before = global_states()
    terms = _loss_at(trainer, run, modules, read, count)
    refuse_if_not(terms, LossTerms, "loss")
    moved = moved_generators(before, but="torch")
    if moved:
        raise BrokenPromise(
            f"the loss drew from the global generator of {' and '.join(moved)}",
            expected="draws from `random`, or from torch", setting="loss",
        )  # fmt: skip
    if terms.sum.numel() != 1 or not terms.sum.requires_grad:
        raise BrokenPromise(
            f"LossTerms.sum has shape {tuple(terms.sum.shape)}, requires_grad {terms.sum.requires_grad}",
            expected="one number with a gradient", setting="loss",
        )  # fmt: skip
    again = _loss_at(trainer, run, trainer.begin(run, None).modules, read, count)
    difference = first_difference(terms.sum.detach(), again.sum.detach(), "the loss of the same batch")
    if difference and run.device is not None and run.device.type == "cpu":
        raise BrokenPromise(f"{difference} when asked twice", expected="the same number", setting="loss")
    return None


def splits(subject: Subject) -> str:
    """The gradient of a batch does not depend on how it is cut into microbatches."""
    from app_trainer_sdk.testing.splits import assert_split_invariant

    worst = assert_split_invariant(*subject.supervised())
    return f"within {worst:.1e}"


def largest_batch(subject: Subject) -> str:
    """``largest_batch`` has the rows asked, is no lighter than a real batch, and can be trained on."""
    trainer, run = subject.supervised()
    one = max(1, trainer.minimum_rows)
    small, large = trainer.largest_batch(run, one), trainer.largest_batch(run, 2 * one)
    refuse_if_not(large, Batch, "largest_batch")
    heaviest = max(small.tensors, key=lambda name: small.tensors[name].numel())
    sizes = small.tensors[heaviest].numel(), large.tensors[heaviest].numel()
    if sizes[1] != 2 * sizes[0] or not math.isclose(large.units, 2 * small.units):
        raise BrokenPromise(
            f"for {one} and {2 * one} rows {heaviest} has {sizes[0]:,} and {sizes[1]:,} values, and there are "
            f"{small.units:g} and {large.units:g} units", expected="twice as many of both for twice the rows",
            setting="largest_batch",
        )  # fmt: skip
    _refuse_lighter(subject, large, 2 * one)
    shown = trainer.show(run, large)
    if shown and len(shown) != 2 * one:
        raise BrokenPromise(f"show tells {len(shown)} rows of {2 * one}", expected="each row", setting="show")
    _train_on(trainer, run, large)
    return f"{sizes[1] // (2 * one):,} values of {heaviest} a row"


def _refuse_other_records(trainer: SupervisedTrainer, run: Any) -> None:
    """A stream goes on from its state, or gives the same records again when it is read again."""
    from app_trainer_sdk.testing.compare import first_difference

    first, again = trainer.dataset(run, "train"), trainer.dataset(run, "train")
    if not isinstance(first, Stream) or not isinstance(again, Stream) or first.resume == "not exact":
        return
    half = 4 * run.settings.microbatch
    reading = first.begin(0, None)
    before, state = list(itertools.islice(reading, half)), None
    if first.resume == "exact":
        state = json.loads(json.dumps(first.state()))
    expected = [*([] if first.resume == "exact" else before), *itertools.islice(reading, half)]
    found = list(itertools.islice(again.begin(0, state), len(expected)))
    difference = first_difference(expected, found, "the records")
    if difference:
        raise BrokenPromise(
            f"{difference} when the stream is begun again from {state!r}",
            expected="the same records, since a resume goes on with them",
            setting="what its state holds, or what it draws from; or a stream that resumes 'not exact'",
        )  # fmt: skip


def _item(dataset: Any, index: int, run: Any, declared: bool) -> Any:
    from app_trainer_sdk.training.randomness import global_seeds

    random = run.random("check", index)
    if not declared:
        return dataset.item(index, random)
    with global_seeds(random.seed):
        return dataset.item(index, random)


def _rows(subject: Subject) -> tuple[Rows, int]:
    """The training split as something that gives batches, and the plan's microbatch."""
    from app_trainer_sdk.training.feed import Rows

    trainer, run = subject.supervised()
    return Rows(trainer, run, training_rows(trainer, run), run.settings.seed), run.settings.microbatch


def _loss_at(trainer: SupervisedTrainer, run: Any, modules: Any, read: Rows, count: int) -> LossTerms:
    from app_trainer_sdk.training.feed import to_device
    from app_trainer_sdk.training.randomness import seed_torch
    from app_trainer_sdk.training.wrap import autocast

    batch = to_device(read[0, tuple(range(count))], run.device)
    random = run.random("check", "loss")
    seed_torch(random.seed, run.device)
    with autocast(run):
        return trainer.loss(modules, batch, random)


def _refuse_lighter(subject: Subject, largest: Batch, rows: int) -> None:
    read, _ = _rows(subject)
    if len(read.dataset) < rows:
        return
    real = read[0, tuple(range(rows))]
    for name, tensor in real.tensors.items():
        if name not in largest.tensors:
            raise BrokenPromise(
                f"largest_batch has no {name}", expected="the tensors of a real batch", setting="largest_batch"
            )
        if tensor.numel() > largest.tensors[name].numel():
            raise BrokenPromise(
                f"{rows} real rows have {tensor.numel():,} values of {name}, the largest batch of as many has "
                f"{largest.tensors[name].numel():,}", expected="no real batch to be heavier",
                setting="largest_batch, or what limits a row",
            )  # fmt: skip


def _train_on(trainer: SupervisedTrainer, run: Any, batch: Batch) -> None:
    from app_trainer_sdk.training.feed import to_device
    from app_trainer_sdk.training.wrap import autocast

    modules = trainer.begin(run, None).modules
    with autocast(run):
        terms = trainer.loss(modules, to_device(batch, run.device), run.random("check", "largest"))
    terms.sum.backward()  # type: ignore[no-untyped-call]
