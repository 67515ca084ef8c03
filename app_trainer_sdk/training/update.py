"""Owns one update of the ordinary loop: from a window to a step that is made, or not.

Everything that decides the numbers of an update is in this file and the five it calls: ``feed`` (what is
read), ``wrap`` (how it is computed), ``accumulation`` (the gradient and its divisors), ``optim`` and
``schedule`` (how far it goes). This file must not know which update comes next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from app_trainer_sdk.data_wait import LEAST_WAIT_SECONDS, split_wait
from app_trainer_sdk.errors import BadData, InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training import oom, optim
from app_trainer_sdk.training.accumulation import accumulate
from app_trainer_sdk.training.feed import LoadedWindow
from app_trainer_sdk.training.metrics import read_two
from app_trainer_sdk.training.optimizer_state import check_state
from app_trainer_sdk.training.schedule import learning_rate
from app_trainer_sdk.training.state import SupervisedState
from app_trainer_sdk.training.team import Agreement
from app_trainer_sdk.training.whole_step import apply_update, forget_unscaling
from app_trainer_sdk.values import JSON, StepInfo

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run

NO_UNIT = "no unit to train on in this global batch"
NON_FINITE = "non-finite loss or gradient"


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
    sums, shortage = accumulate(run, state, window, units)
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
    with state.team.exchanging():
        agreed = state.team.agree(units, empty, update.metrics, short=update.shortage is not None)
    if agreed.short:
        raise oom.OutOfMemoryHere(update.shortage or oom.elsewhere())
    if not update.why:
        _measure_gradient(state, update)
        with state.team.exchanging():
            totals = state.team.total(update.loss, update.metrics, agreed, run.device)
        update.loss, update.metrics = totals
    return agreed


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
    gradients = state.gradients()
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
        with state.team.exchanging():
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
        torch._foreach_mul_(state.gradients(), limit / (norm + 1e-6))


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
