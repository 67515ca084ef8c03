"""Owns the proof that a loss may be split: the gradient of a batch is the sum of its parts' gradients.

This is what lets the SDK accumulate, spread over ranks and halve a batch that does not fit. Dropout is off
(evaluation mode), and torch's random functions give constants meanwhile, since noise of another shape would be
other noise. This file must not know which splits a run will make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from app_trainer_sdk.testing.training_rows import training_rows
from app_trainer_sdk.testing.verdict import BrokenPromise, NotApplicable
from app_trainer_sdk.training.feed import Rows, to_device
from app_trainer_sdk.training.order import cut
from app_trainer_sdk.training.randomness import Random
from app_trainer_sdk.training.wrap import autocast

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.values import Batch, Modules

Split = Sequence[tuple[int, int]]
ROWS = 8
#: Greatest difference of two gradients as a share of their norm, by precision of the forward or of what trains.
TOLERANCES: dict[torch.dtype | None, float] = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}


def assert_split_invariant(
    trainer: SupervisedTrainer, run: Run, *, rows: int = ROWS, tolerance: float | None = None
) -> float:
    """Assert that the gradient of ``rows`` rows does not depend on how they are cut into microbatches.

    Args:
        trainer: the trainer; with ``coupled_rows`` there is nothing to assert.
        run: a prepared handle.
        rows: rows of the training split to use.
        tolerance: greatest difference of two gradients, as a share of the gradient's norm; 0.1 % in fp32.

    Returns:
        the greatest difference found.

    Raises:
        BrokenPromise: (an ``AssertionError``) units or gradients depend on the split.
        NotApplicable: the rows are coupled, or there are too few to split.
    """
    if trainer.coupled_rows:
        raise NotApplicable("coupled_rows: this loss is never split")
    dataset = training_rows(trainer, run)
    rows = min(rows, len(dataset))
    splits = _splits(rows, trainer.minimum_rows)
    if not splits:
        raise NotApplicable(f"{rows} rows with minimum_rows {trainer.minimum_rows} cannot be split")
    modules = _modules(trainer, run)
    trained = [each.dtype for each in modules.root.parameters() if each.requires_grad]
    tolerance = tolerance or max(TOLERANCES.get(each, 1e-3) for each in [run.dtype, *trained])
    read = Rows(trainer, run, dataset, run.settings.seed)
    whole, units = _gradient(trainer, run, modules, read, [(0, rows)])
    norm = float(torch.linalg.vector_norm(whole))
    if not norm > 0:
        raise BrokenPromise(
            f"the gradient of the first {rows} rows has norm {norm}", expected="one that trains something"
        )
    worst = 0.0
    for split in splits:
        parts, parts_units = _gradient(trainer, run, modules, read, split)
        _compare_units(units, parts_units, split)
        difference = float(torch.linalg.vector_norm(parts - whole)) / norm
        if not difference <= tolerance:
            raise BrokenPromise(
                f"cut into microbatches of {_sizes(split)} rows, {rows} rows give a gradient that differs by "
                f"{difference:.1%} from theirs at once (norms {float(torch.linalg.vector_norm(parts)):.4g} and "
                f"{norm:.4g})", expected=f"at most {tolerance:.1%}",
                setting="loss to return the sum over units, never a mean, with no row seeing another; "
                "or coupled_rows = True",
            )  # fmt: skip
        worst = max(worst, difference)
    return worst


class HeldNoise(TorchFunctionMode):
    """Inside, torch's random functions give one constant for any shape, and dropout does nothing."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        held = _HELD.get(func)
        return func(*args, **(kwargs or {})) if held is None else held(func, args, kwargs or {})


def _filled(value: float) -> Callable[..., Tensor]:
    """A random factory that fills with ``value`` instead."""

    def held(func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
        return func(*args, **kwargs).fill_(value)

    return held


def _middle(func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    """A random factory of whole numbers: the middle of its range, the same for any shape."""
    bounds = [each for each in args if isinstance(each, int)]
    low = kwargs.get("low", bounds[0] if len(bounds) > 1 else 0)
    high = kwargs.get("high", bounds[-1] if bounds else 1)
    return func(*args, **kwargs).fill_((low + high) // 2)


def _first_argument(func: Callable[..., Tensor], args: Any, kwargs: Any) -> Tensor:
    value: Tensor = args[0] if args else kwargs["input"]
    return value


_HELD: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.randn: _filled(0.5), torch.randn_like: _filled(0.5), torch.normal: _filled(0.5),
    torch.rand: _filled(0.5), torch.rand_like: _filled(0.5),
    torch.randint: _middle, torch.randint_like: _middle,
    Tensor.normal_: _filled(0.5), Tensor.uniform_: _filled(0.5), Tensor.random_: _filled(1),
    torch.bernoulli: _filled(1.0), Tensor.bernoulli_: _filled(1.0),
    torch.nn.functional.dropout: _first_argument, torch.dropout: _first_argument,
}  # fmt: skip


def _modules(trainer: SupervisedTrainer, run: Run) -> Modules:
    modules: Modules = trainer.begin(run, None).modules
    modules.root.eval()
    return modules


def _gradient(
    trainer: SupervisedTrainer, run: Run, modules: Modules, read: Rows, split: Split
) -> tuple[Tensor, float]:
    """The gradient summed over the parts of a split and divided by their units, as one vector; the units."""
    parameters = [each for each in modules.root.parameters() if each.requires_grad]
    random = Random(run.settings.seed)  # one stream for all parts: what a row draws stays the same
    units = 0.0
    for batch in _parts(read, split):
        units += batch.units
        with HeldNoise(), autocast(run):
            total = trainer.loss(modules, to_device(batch, _device(run)), random).sum
        total.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    parts = [torch.view_as_real(each) if each.is_complex() else each for each in gradients]
    modules.root.zero_grad(set_to_none=True)
    return torch.cat([each.flatten().double() for each in parts]) / max(units, 1e-12), units


def _parts(read: Rows, split: Split) -> Iterator[Batch]:
    return (read[0, tuple(range(start, end))] for start, end in split)


def _splits(rows: int, minimum: int) -> list[Split]:
    """Halves, one part small and one large, and pieces as small as may be."""
    least = max(1, minimum)
    if rows < 2 * least:
        return []
    uneven = [(0, rows - least), (rows - least, rows)]
    candidates: list[Split] = [cut(rows, -(-rows // 2), minimum_rows=least), uneven]
    candidates.append(cut(rows, least, minimum_rows=least))
    return [each for at, each in enumerate(candidates) if each not in candidates[:at] and len(each) > 1]


def _compare_units(whole: float, parts: float, split: Split) -> None:
    if abs(whole - parts) > 1e-6 * max(1.0, abs(whole)):
        raise BrokenPromise(
            f"{split[-1][1]} rows have {whole:g} units at once and {parts:g} cut into {_sizes(split)}",
            expected="the same number", setting="what collate counts as units",
        )  # fmt: skip


def _sizes(split: Split) -> str:
    return " + ".join(str(end - start) for start, end in split)


def _device(run: Run) -> torch.device:
    assert run.device is not None
    return run.device
