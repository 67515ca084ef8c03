"""Owns the gradient of one window: forward and backward of its microbatches, and what divides them.

This file must not know what becomes of a gradient: norm, clip, optimizer and verdict are ``update``'s.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from app_trainer_sdk.errors import InternalError, refuse_other
from app_trainer_sdk.time_split import timed
from app_trainer_sdk.training import oom
from app_trainer_sdk.training.feed import LoadedWindow, Microbatch, to_device
from app_trainer_sdk.training.interrupts import interruptible
from app_trainer_sdk.training.randomness import Random, seed_torch
from app_trainer_sdk.training.state import SupervisedState
from app_trainer_sdk.training.wrap import autocast
from app_trainer_sdk.values import Batch, LossTerms

if TYPE_CHECKING:
    from app_trainer_sdk.handle import Run

_NOTHING = contextlib.nullcontext()


def accumulate(
    run: Run, state: SupervisedState, window: LoadedWindow, units: float
) -> tuple[Sums, oom.Shortage | None]:
    """Forward and backward of every microbatch; gradients add up to the gradient of sum(loss) / units.

    A rank whose memory ran out takes part in the exchange of gradients all the same, with nothing: the others
    would wait for it. They hear of it with the numbers of the next window, before anything is applied.

    Args:
        run: the handle of the job.
        state: what trains; its gradients are empty before and hold the window's afterwards.
        window: this rank's microbatches, which may be none.
        units: trained units of the whole window, over all ranks; above zero.

    Returns:
        what adds up on this rank, and how memory ran out here, if it did.

    Raises:
        OutOfMemoryHere: memory ran out, and there is no other rank to tell first.
        InternalError: a term of the loss is no scalar, or none depends on a trainable parameter.
    """
    replica, first = state.replica, state.counters.updates == 0
    sums = Sums()
    # A backward that exchanges gradients and fails half-way cannot be repeated: none does so once memory ran
    # out, nor one of a microbatch larger than all that fitted so far.
    overlaps = (
        replica is not None and not state.counters.out_of_memory and window.last_size <= state.largest
        and replica.overlaps(window.microbatches, first=first)
    )  # fmt: skip
    shortage = None
    try:
        _add_up(run, state, window, units, sums, overlaps=overlaps)
    except Exception as error:
        if not oom.is_out_of_memory(error):
            raise
        shortage = oom.shortage_of(error)
    if shortage is not None:  # outside the except block: nothing holds the failed frames any more
        sums = Sums()
        state.drop_gradients()
        if replica is None:
            raise oom.OutOfMemoryHere(shortage)
    if replica is not None and sums.carried is not None:
        _go_backward(state, sums.carried)
        replica.refuse_unfinished()
    elif replica is not None:
        with state.team.exchanging():
            replica.reduce(first=first)
    return sums, shortage


@dataclass
class Sums:
    """What adds up over a window's microbatches; ``carried`` is the loss whose backward is still to come."""

    loss: Tensor | float = 0.0
    metrics: dict[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)
    carried: _Share | None = None
    transfer_seconds: float = 0.0


def _add_up(
    run: Run, state: SupervisedState, window: LoadedWindow, units: float, sums: Sums, *, overlaps: bool
) -> None:
    """Every microbatch, but for the last one's backward when that is to carry the gradients of all ranks."""
    replica, last = state.replica, len(window.microbatches) - 1
    for number, microbatch in enumerate(window.microbatches):
        run.check()
        carries = overlaps and number == last
        quiet = _NOTHING if replica is None or carries else replica.quiet()
        with quiet, interruptible(really=state.team.size == 1):
            terms = _forward(run, state, window, microbatch, sums)
            _add(sums.metrics, terms)
            share = _share(terms, microbatch, units, window.pieces)
            if share is not None:
                sums.loss = share.value if number == 0 else sums.loss + share.value
                if carries:
                    sums.carried = share
                else:
                    _go_backward(state, share)
                    if replica is not None:
                        state.largest = max(state.largest, microbatch.size)
        del terms, share


def _add(metrics: dict[str, tuple[Tensor | float, Tensor | float]], terms: LossTerms) -> None:
    for name, pair in terms.metrics.items():
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InternalError(
                f"the metric {name} is {pair!r}", expected="a pair (sum, count)", setting="loss"
            )
        before = metrics.get(name, (0.0, 0.0))
        metrics[name] = (before[0] + _detached(pair[0]), before[1] + _detached(pair[1]))


class _Share(NamedTuple):
    """What a microbatch adds to the update's loss.

    Attributes:
        value: a scalar without a graph.
        parts: the scalars it is made of, each with what divides it, in the loss and so in the gradient.
    """

    value: Tensor
    parts: list[tuple[Tensor, float]]


def _go_backward(state: SupervisedState, share: _Share) -> None:
    """Divide on the way back: in the graph it would be two more kernels, and a tensor of ones."""
    terms: Any = [term for term, _ in share.parts]
    if state.scaler is not None:
        terms = state.scaler.scale(terms)
    factor = 1.0 if state.replica is None else state.replica.factor
    divisors = [by for _, by in share.parts]
    weights = [torch.full_like(term, factor / by) for term, by in zip(terms, divisors, strict=True)]
    torch.autograd.backward(terms, weights)


def _share(terms: LossTerms, microbatch: Microbatch, units: float, count: int) -> _Share | None:
    """What a microbatch adds to the update's loss; None when it adds nothing.

    A sum over no unit is no loss, whatever the trainer made of it: a constant zero, or 0 / 0.
    """
    parts = [(terms.sum, units)] if microbatch.batch.units else []
    if terms.means:
        parts += [(mean, float(count)) for mean in terms.means.values()]
    if not parts:
        return None
    values = [_value(scalar) / by for scalar, by in parts]
    parts = [part for part in parts if part[0].requires_grad]
    if not parts:
        raise InternalError(
            "the loss does not depend on any trainable parameter", expected="a loss with a gradient",
            setting="requires_grad, or a use_reentrant=True inside the model",
        )  # fmt: skip
    return _Share(sum(values[1:], values[0]), parts)


def _value(scalar: Tensor) -> Tensor:
    if not isinstance(scalar, Tensor) or scalar.numel() != 1:
        kind = f"the shape {tuple(scalar.shape)}" if isinstance(scalar, Tensor) else f"the value {scalar!r}"
        raise InternalError(f"a term of the loss has {kind}", expected="a scalar tensor", setting="loss")
    return scalar.detach()


def _forward(
    run: Run, state: SupervisedState, window: LoadedWindow, microbatch: Microbatch, sums: Sums
) -> LossTerms:
    assert run.device is not None
    # Dropout draws from torch's own generator: seed it by position, so nothing depends on what ran before.
    seed, position = state.settings.seed, window.window.position
    random = Random(seed, "loss", position, microbatch.number)
    random.part_of(Random(seed, "loss", position), microbatch.first)
    seed_torch(random.seed, run.device)
    batch = _moved(microbatch.batch, run.device, sums)
    with autocast(run):
        terms = (state.replica or state.loss)(batch, random)
    return refuse_other(terms, LossTerms, "loss")


def _moved(batch: Batch, device: torch.device, sums: Sums) -> Batch:
    if device.type == "cpu":
        return batch  # it is there
    started = time.perf_counter()
    with timed("data_wait"):
        moved = to_device(batch, device)
    sums.transfer_seconds += time.perf_counter() - started
    return moved


def _detached(value: Tensor | float) -> Tensor | float:
    return value.detach() if isinstance(value, Tensor) else value
