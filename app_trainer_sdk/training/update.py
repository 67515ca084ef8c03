"""Owns one update of the ordinary loop: forward, backward, the divisor, the clip, and whether it is applied.

Everything that decides the numbers of an update is in this file and the four it calls: ``feed`` (what is
read), ``wrap`` (how it is computed), ``optim`` and ``schedule`` (how far it goes). This file must not know
which update comes next.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from app_trainer_sdk.data_wait import LEAST_WAIT_SECONDS, split_wait
from app_trainer_sdk.errors import BadData, InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.time_split import timed
from app_trainer_sdk.training import oom, optim
from app_trainer_sdk.training.feed import LoadedWindow, Microbatch, to_device
from app_trainer_sdk.training.interrupts import interruptible
from app_trainer_sdk.training.metrics import read_two
from app_trainer_sdk.training.optimizer_state import check_state
from app_trainer_sdk.training.randomness import Random, seed_torch
from app_trainer_sdk.training.schedule import learning_rate
from app_trainer_sdk.training.state import SupervisedState
from app_trainer_sdk.training.team import Agreement
from app_trainer_sdk.training.whole_step import apply_update, forget_unscaling
from app_trainer_sdk.training.wrap import autocast
from app_trainer_sdk.values import JSON, Batch, LossTerms, StepInfo

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run

NO_UNIT = "no unit to train on in this global batch"
NON_FINITE = "non-finite loss or gradient"
_NOTHING = contextlib.nullcontext()


@dataclass
class Update:
    """An update on its way: launched, its verdict not read yet."""

    window: LoadedWindow
    loss: Tensor | float
    gradient_norm: Tensor | float | None
    rate: float
    units: float
    empty: int
    metrics: Mapping[str, tuple[Tensor | float, Tensor | float]]
    why: str = ""
    shortage: oom.Shortage | None = None
    transfer_seconds: float = 0.0


def start_update(run: Run, state: SupervisedState, window: LoadedWindow, agreed: Agreement) -> Update:
    """Launch forward and backward of one window; nothing is applied yet.

    Raises:
        OutOfMemoryHere: memory ran out, and there is no other rank to tell first.
    """
    units = agreed.units
    rate = _rate(state.settings, state.counters.updates)
    if units <= 0:
        return Update(window, float("nan"), None, rate, 0.0, agreed.empty, {}, why=NO_UNIT)
    optim.set_learning_rate(state.optimizer, rate)
    sums, shortage = _accumulate(run, state, window, units)
    return Update(
        window, sums.loss, None, rate, units, agreed.empty, sums.metrics, shortage=shortage,
        transfer_seconds=sums.transfer_seconds,
    )  # fmt: skip


def look_ahead(run: Run, state: SupervisedState, update: Update, following: LoadedWindow | None) -> Agreement:
    """Agree on the next window while the device works; loss, norm and metrics become those of all ranks.

    Raises:
        OutOfMemoryHere: on every rank, when memory ran out on one; gradients are then worth nothing. Of several
            ranks one that fell short over the norm tells the others by its loss: see :func:`_step`.
    """
    assert run.device is not None
    units, empty = (following.units, following.empty) if following is not None else (0.0, 0)
    with _exchange(state):
        agreed = state.team.agree(units, empty, update.metrics, short=update.shortage is not None)
    if agreed.short:
        raise oom.OutOfMemoryHere(update.shortage or oom.elsewhere())
    if not update.why:
        _measure_gradient(state, update)
        with _exchange(state):
            totals = state.team.total(update.loss, update.metrics, agreed, run.device)
        update.loss, update.metrics = totals
    return agreed


def _accumulate(
    run: Run, state: SupervisedState, window: LoadedWindow, units: float
) -> tuple[_Sums, oom.Shortage | None]:
    """Forward and backward of every microbatch; gradients add up to the gradient of sum(loss) / units.

    A rank whose memory ran out takes part in the exchange of gradients all the same, with nothing: the others
    would wait for it. They hear of it with the numbers of the next window, before anything is applied.
    """
    replica, first = state.replica, state.counters.updates == 0
    sums = _Sums()
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
        sums = _Sums()
        state.drop_gradients()
        if replica is None:
            raise oom.OutOfMemoryHere(shortage)
    if replica is not None and sums.carried is not None:
        _go_backward(state, sums.carried)
        replica.refuse_unfinished()
    elif replica is not None:
        with _exchange(state):
            replica.reduce(first=first)
    return sums, shortage


@dataclass
class _Sums:
    """What adds up over a window's microbatches; ``carried`` is the loss whose backward is still to come."""

    loss: Tensor | float = 0.0
    metrics: dict[str, tuple[Tensor | float, Tensor | float]] = field(default_factory=dict)
    carried: _Share | None = None
    transfer_seconds: float = 0.0


def _add_up(
    run: Run, state: SupervisedState, window: LoadedWindow, units: float, sums: _Sums, *, overlaps: bool
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
    if scalar.numel() != 1:
        raise InternalError(
            f"a term of the loss has the shape {tuple(scalar.shape)}", expected="a scalar", setting="loss"
        )
    return scalar.detach()


def _forward(
    run: Run, state: SupervisedState, window: LoadedWindow, microbatch: Microbatch, sums: _Sums
) -> LossTerms:
    assert run.device is not None
    # Dropout draws from torch's own generator: seed it by position, so nothing depends on what ran before.
    seed, position = state.settings.seed, window.window.position
    random = Random(seed, "loss", position, microbatch.number)
    random.part_of(Random(seed, "loss", position), microbatch.first)
    seed_torch(random.seed, run.device)
    batch = _moved(microbatch.batch, run.device, sums)
    with autocast(run):
        terms: LossTerms = (state.replica or state.loss)(batch, random)
    return terms


def _moved(batch: Batch, device: torch.device, sums: _Sums) -> Batch:
    if device.type == "cpu":
        return batch  # it is there
    started = time.perf_counter()
    with timed("data_wait"):
        moved = to_device(batch, device)
    sums.transfer_seconds += time.perf_counter() - started
    return moved


def _exchange(state: SupervisedState) -> contextlib.AbstractContextManager[None]:
    """Inside, ranks tell each other something, or wait for each other."""
    return timed("communication") if state.team.size > 1 else _NOTHING


def _measure_gradient(state: SupervisedState, update: Update) -> None:
    """Take the norm, or find that memory runs out. No weight has moved yet, so the update can be made again."""
    try:
        update.gradient_norm = _norm(state)
        return
    except Exception as error:
        if not oom.is_out_of_memory(error):
            raise
        update.shortage = oom.shortage_of(error)
    # Outside the except block: nothing holds the failed frames any more.
    state.drop_gradients()
    if state.team.size == 1:
        forget_unscaling(state)
        raise oom.OutOfMemoryHere(update.shortage)
    update.loss = update.gradient_norm = torch.full((), math.nan, device=state.parameters[0].device)


def _norm(state: SupervisedState) -> Tensor:
    """The norm of the update's whole gradient, after accumulation and unscaling, before clipping."""
    if state.scaler is not None:
        state.scaler.unscale_(state.optimizer)
    gradients = [each.grad for each in state.parameters if each.grad is not None]
    if not gradients:
        raise InternalError(
            "the loss reached no trainable parameter", expected="a gradient for every trainable parameter"
        )
    return nn.utils.get_total_norm(gradients)


def settle_update(
    trainer: SupervisedTrainer, state: SupervisedState, update: Update, buffers: list[Tensor],
    recovered: Sequence[Mapping[str, JSON]] = (),
) -> StepInfo:  # fmt: skip
    """Read the verdict, step if it is good, and book what happened. Nothing in here can be interrupted.

    Raises:
        OutOfMemoryHere: memory ran out in the step; nothing is booked and, where it can be tried again, nothing
            was applied.
    """
    counters, window = state.counters, update.window.window
    if not update.why:
        _step(trainer, state, update)
    counters.position = window.after
    state.place = update.window.place
    counters.empty_microbatches += update.empty
    if not update.why:
        _follow_buffers(state)
        counters.updates += 1
        counters.nonfinite_in_a_row = 0
        counters.examples += len(window.ids)
        counters.units += update.units
    else:
        state.buffers.put_back(buffers)  # a batch that was not applied leaves nothing, NaN least of all
    if update.why == NO_UNIT:
        counters.without_units += 1
        _stop_when_nothing_trains(state)
    return StepInfo(
        step=counters.updates, loss=update.loss, learning_rate=update.rate, gradient_norm=update.gradient_norm,
        units=update.units, examples=len(window.ids), data_seconds=update.window.seconds,
        data_parts=_parts(update),
        ids_digest=window.digest(), applied=not update.why, why=update.why, metrics=update.metrics,
        recovered=recovered,
    )  # fmt: skip


def _parts(update: Update) -> dict[str, float]:
    """What the update waited for, where the wait was long enough to tell."""
    seconds, transfer = update.window.seconds, update.transfer_seconds
    if seconds + transfer < LEAST_WAIT_SECONDS:
        return {}
    return {**split_wait(seconds, update.window.times), "transfer": transfer}


def _follow_buffers(state: SupervisedState) -> None:
    """Running statistics are those of rank 0's rows, as in DDP: evaluation and checkpoints see one model."""
    if state.team.size > 1:
        buffers = state.buffers.copies()
        with _exchange(state):
            state.team.follow(buffers)
        state.buffers.put_back(buffers)


def _step(trainer: SupervisedTrainer, state: SupervisedState, update: Update) -> None:
    """Clip and apply the update if its loss and gradient are finite; this is the one host read of an update."""
    norm = update.gradient_norm
    assert isinstance(norm, Tensor)
    scale = state.scaler.get_scale() if state.scaler is not None else 1.0
    update.loss, update.gradient_norm = read_two(update.loss, norm)
    if math.isfinite(update.loss) and math.isfinite(update.gradient_norm):
        if state.counters.updates == 0:
            _check_every_gradient(trainer, state)
        _clip(state, update.gradient_norm)
        apply_update(state)
        if state.counters.updates == 0:
            check_state(state.optimizer, state.modules.root)
    else:
        # Asked in the rare case alone: a rank that fell short over the norm made the loss of all a NaN.
        if any(state.team.anywhere([update.shortage is not None])):
            forget_unscaling(state)
            raise oom.OutOfMemoryHere(update.shortage or oom.elsewhere())
        update.why = NON_FINITE
        state.counters.skipped += 1
        # An overflow under a loss scale is what the scale is there to find: it is halved, not a divergence.
        if scale <= 1.0 or not math.isfinite(update.loss):
            state.counters.nonfinite_in_a_row += 1
    if state.scaler is not None:
        state.scaler.update()
    state.drop_gradients()


def _clip(state: SupervisedState, norm: float) -> None:
    """As ``torch.nn.utils.clip_grad_norm_`` does, which cannot know on the host that there is nothing to do.

    In place, so that no memory is taken.
    """
    limit = state.settings.max_gradient_norm
    if limit and norm > limit:
        gradients = [each.grad for each in state.parameters if each.grad is not None]
        torch._foreach_mul_(gradients, limit / (norm + 1e-6))


def _stop_when_nothing_trains(state: SupervisedState) -> None:
    """A whole pass without a unit is not a training run."""
    counters, order, place = state.counters, state.order, state.place
    whole = counters.position >= order.rows if order is not None else place is not None and place.epoch > 0
    if counters.updates == 0 and whole:
        read = f"all {order.rows} rows" if order is not None else f"{counters.position} records, a whole pass,"
        raise BadData(
            f"{read} were read and none has a unit to train on",
            expected="trained tokens, labels or weights in the rows",
        )


def _rate(settings: Hyperparameters, update: int) -> float:
    assert settings.updates != "auto"
    assert settings.warmup_updates != "auto"
    return learning_rate(
        update, highest=settings.learning_rate, updates=settings.updates, warmup=settings.warmup_updates,
        shape=settings.schedule, final_ratio=settings.final_learning_rate_ratio,
    )  # fmt: skip


def _check_every_gradient(trainer: SupervisedTrainer, state: SupervisedState) -> None:
    """Before the first update: a trainable parameter without a gradient would stay as it is for ever."""
    allowed = tuple(trainer.may_lack_gradient)
    missing = [state.names[each] for each in state.parameters if each.grad is None]
    missing = [name for name in missing if not (allowed and name.startswith(allowed))]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise InternalError(
            f"no gradient reached {shown}", expected="a gradient for every trainable parameter",
            setting="requires_grad, or may_lack_gradient in the trainer",
        )  # fmt: skip


def _detached(value: Tensor | float) -> Tensor | float:
    return value.detach() if isinstance(value, Tensor) else value
