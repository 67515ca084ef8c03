"""Owns the ordinary training loop: windows in, updates out, one fact a step.

A plain generator over facts. It knows nothing of events, files, checkpoints or signals: between two yields
the driver does all that. Everything that decides the numbers of an update is in this file and the four it
calls: ``feed`` (what is read), ``wrap`` (how it is computed), ``optim`` and ``schedule`` (how far it goes).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from app_trainer_sdk.errors import BadData, Diverged, InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training import distributed, optim
from app_trainer_sdk.training.distributed import Agreement, Replica, Team
from app_trainer_sdk.training.feed import Feed, LoadedWindow, Microbatch, Rows, to_device
from app_trainer_sdk.training.model_state import Buffers, load_tensors, saved_tensors, ties
from app_trainer_sdk.training.order import Order, cut
from app_trainer_sdk.training.randomness import Random, derive_seed, global_seeds, seed_torch
from app_trainer_sdk.training.schedule import learning_rate
from app_trainer_sdk.training.wrap import LossModule, replicate, wrap
from app_trainer_sdk.values import Dataset, Examination, LossTerms, Modules, Snapshot, StepInfo

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run

NO_UNIT = "no unit to train on in this global batch"
NON_FINITE = "non-finite loss or gradient"


@dataclass
class Counters:
    """What has happened since the job began; saved with each checkpoint.

    Attributes:
        position: examples consumed.
        updates: updates really made.
        skipped: updates not made because a loss or gradient was not finite.
        without_units: updates not made because nothing in the global batch was trained on.
        empty_microbatches: microbatches without a unit.
        nonfinite_in_a_row: length of the current streak.
        examples: examples of the updates made.
        units: units of the updates made.
    """

    position: int = 0
    updates: int = 0
    skipped: int = 0
    without_units: int = 0
    empty_microbatches: int = 0
    nonfinite_in_a_row: int = 0
    examples: int = 0
    units: float = 0.0


@dataclass
class SupervisedState:
    """What lives during training."""

    settings: Hyperparameters
    modules: Modules
    loss: LossModule
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    order: Order
    parameters: list[nn.Parameter]
    names: dict[Tensor, str]
    datasets: dict[str, Dataset]
    buffers: Buffers
    team: Team
    replica: Replica | None = None
    counters: Counters = field(default_factory=Counters)


def examine(trainer: SupervisedTrainer, run: Run) -> Examination:
    """The length of the training split."""
    return Examination(rows=len(trainer.dataset(run, "train")))


def begin(trainer: SupervisedTrainer, run: Run, saved: Snapshot | None) -> SupervisedState:
    """Build the state, or rebuild it from a snapshot; both start from the same seeds."""
    assert run.device is not None
    settings: Hyperparameters = run.settings
    seed = derive_seed(settings.seed, "build")
    with global_seeds(seed, run.device):
        modules = trainer.build_model(run, weights=True)
    if not isinstance(modules, Modules):
        raise InternalError(f"build_model returned {type(modules).__name__}", expected="Modules(root)")
    loss = wrap(trainer, modules, settings, run.device)
    _check_batch_norm(trainer, modules.root)
    names = optim.parameter_names(modules.root)
    train = trainer.dataset(run, "train")
    optimizer = optim.build_optimizer(trainer.parameter_groups(run, modules), settings, run.device)
    state = SupervisedState(
        settings=settings, modules=modules, loss=loss, optimizer=optimizer,
        scaler=torch.amp.GradScaler(run.device.type) if settings.mixed_precision == "fp16" else None,
        order=_order(trainer, settings, len(train)), names=names, datasets={"train": train},
        buffers=Buffers(modules.root), team=distributed.here(),
        parameters=[each for group in optimizer.param_groups for each in group["params"]],
    )  # fmt: skip
    if saved is not None:
        _restore(state, saved)
    state.replica = replicate(trainer, loss, state.team)
    return state


def training_steps(trainer: SupervisedTrainer, run: Run, state: SupervisedState) -> Iterator[StepInfo]:
    """Make updates until the plan's number is reached, yielding each as facts."""
    settings, counters = state.settings, state.counters
    assert settings.updates != "auto"
    if counters.updates >= settings.updates:
        return
    feed = _feed(trainer, run, state)
    windows = feed.windows()
    try:
        window = next(windows)
        agreed = state.team.agree(window.units, window.empty)
        while counters.updates < settings.updates:
            if agreed.stop is not None:
                raise agreed.stop
            buffers = state.buffers.copies()
            try:
                update = _start_update(run, state, window, agreed)
                # Read the next rows while the device still works on this update.
                following = next(windows) if counters.updates + 1 < settings.updates else None
                agreed = _look_ahead(run, state, update, following)
            except BaseException:
                # A stop in the middle of a window is saved as the instant before it: batch norm has moved.
                state.buffers.put_back(buffers)
                raise
            yield _settle_update(trainer, state, update, buffers)
            stop_when_diverged(state)
            if counters.updates >= settings.updates:
                return
            if following is None:
                following = next(windows)
                agreed = state.team.agree(following.units, following.empty)
            window = following
    finally:
        windows.close()  # type: ignore[attr-defined]  # ends loader workers


@dataclass
class _Update:
    """An update on its way: launched, its verdict not read yet."""

    window: LoadedWindow
    loss: Tensor | float
    gradient_norm: Tensor | float | None
    rate: float
    units: float
    empty: int
    metrics: Mapping[str, tuple[Tensor | float, Tensor | float]]
    why: str = ""


def _start_update(run: Run, state: SupervisedState, window: LoadedWindow, agreed: Agreement) -> _Update:
    units = agreed.units
    rate = _rate(state.settings, state.counters.updates)
    if units <= 0:
        return _Update(window, float("nan"), None, rate, 0.0, agreed.empty, {}, why=NO_UNIT)
    optim.set_learning_rate(state.optimizer, rate)
    loss, metrics = _accumulate(run, state, window, units)
    return _Update(window, loss, _clip(state), rate, units, agreed.empty, metrics)


def _look_ahead(run: Run, state: SupervisedState, update: _Update, following: LoadedWindow | None) -> Agreement:
    """Agree on the next window while the device works; the update's loss and metrics become those of all."""
    assert run.device is not None
    units, empty = (following.units, following.empty) if following is not None else (0.0, 0)
    agreed = state.team.agree(units, empty, update.metrics)
    if not update.why:
        update.loss, update.metrics = state.team.total(update.loss, update.metrics, agreed, run.device)
    return agreed


def _accumulate(
    run: Run, state: SupervisedState, window: LoadedWindow, units: float
) -> tuple[Tensor | float, dict[str, tuple[Tensor | float, Tensor | float]]]:
    """Forward and backward of every microbatch; gradients add up to the gradient of sum(loss) / units."""
    total: Tensor | float = 0.0
    metrics: dict[str, tuple[Tensor | float, Tensor | float]] = {}
    replica, first, last = state.replica, state.counters.updates == 0, len(window.microbatches) - 1
    overlaps = replica is not None and replica.overlaps(window.microbatches, first=first)
    for number, microbatch in enumerate(window.microbatches):
        run.check()
        carries = overlaps and number == last
        with contextlib.nullcontext() if replica is None or carries else replica.quiet():
            terms = _forward(run, state, window, microbatch)
            _add(metrics, terms)
            share = _share(terms, microbatch, units, window.count)
            if share is not None:
                _go_backward(state, share)
                total = share.detach() if number == 0 else total + share.detach()
        del terms, share
    if replica is not None and overlaps:
        replica.refuse_unfinished()
    elif replica is not None:
        replica.reduce(first=first)
    return total, metrics


def _add(metrics: dict[str, tuple[Tensor | float, Tensor | float]], terms: LossTerms) -> None:
    for name, pair in terms.metrics.items():
        before = metrics.get(name, (0.0, 0.0))
        metrics[name] = (before[0] + _detached(pair[0]), before[1] + _detached(pair[1]))


def _go_backward(state: SupervisedState, share: Tensor) -> None:
    if state.replica is not None:
        share = state.replica.scaled(share)
    (share if state.scaler is None else state.scaler.scale(share)).backward()  # type: ignore[no-untyped-call]


def _share(terms: LossTerms, microbatch: Microbatch, units: float, count: int) -> Tensor | None:
    """What a microbatch adds to the update's loss; None when it adds nothing.

    A sum over no unit is no loss, whatever the trainer made of it: a constant zero, or 0 / 0.
    """
    share: Tensor | None = None
    if microbatch.batch.units:
        share = terms.sum / units
    for mean in terms.means.values():
        share = mean / count if share is None else share + mean / count
    if share is not None and not share.requires_grad:
        raise InternalError(
            "the loss does not depend on any trainable parameter", expected="a loss with a gradient",
            setting="requires_grad, or a use_reentrant=True inside the model",
        )  # fmt: skip
    return share


def _forward(run: Run, state: SupervisedState, window: LoadedWindow, microbatch: Microbatch) -> LossTerms:
    assert run.device is not None
    # Dropout draws from torch's own generator: seed it by position, so nothing depends on what ran before.
    seed = derive_seed(state.settings.seed, "loss", window.window.position, microbatch.number)
    seed_torch(seed, run.device)
    batch = to_device(microbatch.batch, run.device)
    with autocast(run):
        terms: LossTerms = (state.replica or state.loss)(batch, Random(seed))
    return terms


def autocast(run: Run) -> contextlib.AbstractContextManager[Any]:
    """The precision of the forward pass."""
    if run.dtype is None or run.dtype == torch.float32:
        return contextlib.nullcontext()
    assert run.device is not None
    return torch.autocast(run.device.type, dtype=run.dtype)


def _clip(state: SupervisedState) -> Tensor:
    """Clip once per update, after accumulation and unscaling; returns the norm before clipping."""
    if state.scaler is not None:
        state.scaler.unscale_(state.optimizer)
    gradients = [each.grad for each in state.parameters if each.grad is not None]
    if not gradients:
        raise InternalError(
            "the loss reached no trainable parameter", expected="a gradient for every trainable parameter"
        )
    norm = nn.utils.get_total_norm(gradients)
    limit = state.settings.max_gradient_norm
    if limit:
        nn.utils.clip_grads_with_norm_(state.parameters, limit, norm)
    return norm


def _settle_update(
    trainer: SupervisedTrainer, state: SupervisedState, update: _Update, buffers: list[Tensor]
) -> StepInfo:
    """Read the verdict, step if it is good, and book what happened. Nothing in here can be interrupted."""
    counters, window = state.counters, update.window.window
    if not update.why:
        _step(trainer, state, update)
    counters.position = window.after
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
        ids_digest=window.digest(), applied=not update.why, why=update.why, metrics=update.metrics,
    )  # fmt: skip


def _follow_buffers(state: SupervisedState) -> None:
    """Running statistics are those of rank 0's rows, as in DDP: evaluation and checkpoints see one model."""
    if state.team.size > 1:
        buffers = state.buffers.copies()
        state.team.follow(buffers)
        state.buffers.put_back(buffers)


def _step(trainer: SupervisedTrainer, state: SupervisedState, update: _Update) -> None:
    """Apply the update if its loss and gradient are finite; this is the one host read of an update."""
    loss, norm = update.loss, update.gradient_norm
    assert isinstance(loss, Tensor)
    assert isinstance(norm, Tensor)
    scale = state.scaler.get_scale() if state.scaler is not None else 1.0
    # One number is read and judged on the host: torch.isfinite is four kernels for a scalar.
    if math.isfinite(float(norm + loss)):
        if state.counters.updates == 0:
            _check_every_gradient(trainer, state)
        state.optimizer.step()
    else:
        update.why = NON_FINITE
        state.counters.skipped += 1
        # An overflow under a loss scale is what the scale is there to find: it is halved, not a divergence.
        if scale <= 1.0 or not bool(torch.isfinite(loss)):
            state.counters.nonfinite_in_a_row += 1
    if state.scaler is not None:
        state.scaler.update()
    state.optimizer.zero_grad(set_to_none=True)


def snapshot(state: SupervisedState) -> Snapshot:
    """Everything the next update depends on. All of it describes the same instant: between two updates."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in saved_tensors(state.modules.root).items():
        tensors[f"model/{name}"] = tensor
    optimizer_tensors, optimizer_values = optim.optimizer_snapshot(state.optimizer, state.names)
    tensors |= {f"optimizer/{name}": tensor for name, tensor in optimizer_tensors.items()}
    values: dict[str, Any] = {
        "counters": vars(state.counters).copy(),
        "optimizer": optimizer_values,
        "ties": ties(state.modules.root),
    }
    if state.scaler is not None:
        values["scaler"] = state.scaler.state_dict()
    return Snapshot(tensors, values)


def _restore(state: SupervisedState, saved: Snapshot) -> None:
    load_tensors(state.modules.root, saved.section("model"))
    optim.restore_optimizer(
        state.optimizer, state.names, saved.section("optimizer"), _mapping(saved.values["optimizer"])
    )
    state.counters = Counters(**_mapping(saved.values["counters"]))
    if state.scaler is not None:
        state.scaler.load_state_dict(dict(_mapping(saved.values["scaler"])))


def evaluate(trainer: SupervisedTrainer, run: Run, state: SupervisedState, split: str) -> Iterator[LossTerms]:
    """Loss terms of ``split`` batch by batch, in order; modes are put back, gradients are off."""
    assert run.device is not None
    if split not in state.datasets:
        state.datasets[split] = trainer.dataset(run, split)
    dataset = state.datasets[split]
    rows = Rows(trainer, run, dataset, derive_seed(state.settings.seed, "evaluate", split))
    assert state.settings.microbatch != "auto"
    modes = [(module, module.training) for module in state.modules.root.modules()]
    state.modules.root.eval()
    try:
        with torch.no_grad():
            pieces = cut(len(dataset), state.settings.microbatch)
            for first in range(0, len(pieces), state.team.size):
                run.check()
                number = first + state.team.rank
                here = pieces[number] if number < len(pieces) else None
                yield state.team.merge(_measure(trainer, run, state, rows, split, number, here))
    finally:
        for module, mode in modes:
            module.training = mode


def _measure(
    trainer: SupervisedTrainer, run: Run, state: SupervisedState, rows: Rows, split: str, number: int,
    piece: tuple[int, int] | None,
) -> LossTerms | None:  # fmt: skip
    """Loss terms of one batch; None for a rank that has none in this round."""
    if piece is None:
        return None
    assert run.device is not None
    batch = to_device(rows[0, tuple(range(*piece))], run.device)
    random = run.random("evaluate", split, number)
    seed_torch(random.seed, run.device)
    with autocast(run):
        terms = trainer.measure(state.modules, batch, random)
    return _with_units(terms, batch.units)


def _with_units(terms: LossTerms, units: float) -> LossTerms:
    """Evaluation reports the loss like any other metric: a sum and what to divide it by."""
    return LossTerms(terms.sum, terms.means, {**terms.metrics, "loss": (terms.sum, units)})


def _stop_when_nothing_trains(state: SupervisedState) -> None:
    """A whole pass without a unit is not a training run."""
    counters = state.counters
    if counters.updates == 0 and counters.position >= state.order.rows:
        raise BadData(
            f"all {state.order.rows} rows were read and none has a unit to train on",
            expected="trained tokens, labels or weights in the rows",
        )


def stop_when_diverged(state: SupervisedState) -> None:
    """Raise :class:`Diverged` when the streak of non-finite updates reached its limit."""
    counters, limit = state.counters, state.settings.nonfinite_limit
    if counters.nonfinite_in_a_row >= limit:
        raise Diverged(
            f"{counters.nonfinite_in_a_row} updates in a row after update {counters.updates} had a "
            "non-finite loss or gradient, and were not applied",
            expected="finite numbers", setting="/hyperparameters/learning_rate",
        )  # fmt: skip


def _rate(settings: Hyperparameters, update: int) -> float:
    assert settings.updates != "auto"
    assert settings.warmup_updates != "auto"
    return learning_rate(
        update, highest=settings.learning_rate, updates=settings.updates, warmup=settings.warmup_updates,
        shape=settings.schedule, final_ratio=settings.final_learning_rate_ratio,
    )  # fmt: skip


def _order(trainer: SupervisedTrainer, settings: Hyperparameters, rows: int) -> Order:
    assert settings.global_batch != "auto"
    return Order(rows, settings.global_batch, seed=settings.seed, minimum_rows=trainer.minimum_rows)


def _feed(trainer: SupervisedTrainer, run: Run, state: SupervisedState) -> Feed:
    settings = state.settings
    assert settings.microbatch != "auto"
    assert settings.dataloader_workers != "auto"
    return Feed(
        Rows(trainer, run, state.datasets["train"], settings.seed), state.order,
        position=state.counters.position, microbatch=settings.microbatch, workers=settings.dataloader_workers,
        rank=state.team.rank, ranks=state.team.size,
    )  # fmt: skip


def _check_batch_norm(trainer: SupervisedTrainer, root: nn.Module) -> None:
    """Batch norm cannot train on one row: the trainer has to say that a rest of one row is merged."""
    if trainer.minimum_rows >= 2:
        return
    for name, module in root.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InternalError(
                f"{name} is a batch norm, which cannot train on a single row",
                expected=f"minimum_rows = 2 in {type(trainer).__name__}",
            )


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


def _mapping(value: Any) -> Mapping[str, Any]:
    assert isinstance(value, Mapping)
    return value
