"""Owns the ordinary training loop: windows in, updates out, one fact a step.

A plain generator over facts. It knows nothing of events, files, checkpoints or signals: between two yields
the driver does all that. What lives meanwhile is in ``state``, an update is made in ``update``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from app_trainer_sdk.errors import Diverged, InternalError, refuse_other
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.time_split import timed
from app_trainer_sdk.training import meeting, optim
from app_trainer_sdk.training.compiled import make_first_call
from app_trainer_sdk.training.ema import WeightAverage
from app_trainer_sdk.training.feed import Feed, Rows
from app_trainer_sdk.training.model_checks import check_model
from app_trainer_sdk.training.model_state import Buffers
from app_trainer_sdk.training.oom import OutOfMemoryHere, described_inputs, make_room
from app_trainer_sdk.training.order import Order
from app_trainer_sdk.training.randomness import derive_seed, global_seeds
from app_trainer_sdk.training.row_facts import read_row_facts
from app_trainer_sdk.training.state import SupervisedState, refuse_other_order, restore
from app_trainer_sdk.training.stream_feed import Place, StreamFeed
from app_trainer_sdk.training.update import look_ahead, settle_update, start_update
from app_trainer_sdk.training.wrap import autocast, replicate, wrap
from app_trainer_sdk.values import JSON, Dataset, Examination, Modules, Snapshot, StepInfo, Stream

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run


def examine(trainer: SupervisedTrainer, run: Run) -> Examination:
    """The length of the training split, and its groups where batches are to be of one group."""
    train = trainer.dataset(run, "train")
    if isinstance(train, Stream):
        return Examination(rows=None, stream=train.resume)
    facts = read_row_facts(train, run.settings, trainer.name)
    return Examination(rows=len(train), fingerprint=facts.digest(), group_sizes=facts.group_sizes)


def begin(trainer: SupervisedTrainer, run: Run, saved: Snapshot | None) -> SupervisedState:
    """Build the state, or rebuild it from a snapshot; both start from the same seeds."""
    assert run.device is not None
    settings: Hyperparameters = run.settings
    train = trainer.dataset(run, "train")
    order = _order(trainer, run, train, saved)
    seed = derive_seed(settings.seed, "build")
    with global_seeds(seed, run.device):
        modules = refuse_other(trainer.build_model(run, weights=True), Modules, "build_model")
    state = assemble(trainer, run, modules, order=order)
    state.datasets["train"] = train
    if saved is not None:
        restore(state, saved)
    if settings.torch_compile is True:
        with timed("compile"):
            make_first_call(trainer, run, state.loss, state.buffers, autocast(run))
    if isinstance(train, Stream):
        state.place = _place(train, state.counters.updates, saved)
    state.replica = replicate(trainer, state.loss, state.team)
    return state


def assemble(
    trainer: SupervisedTrainer, run: Run, modules: Modules, *, order: Order | None = None
) -> SupervisedState:
    """The state around modules that were just built; without data, for planning and rehearsal."""
    assert run.device is not None
    settings: Hyperparameters = run.settings
    loss = wrap(trainer, modules, settings, run.device)
    check_model(trainer, settings, modules.root)
    names = optim.parameter_names(modules.root)
    optimizer = optim.build_optimizer(
        trainer.parameter_groups(run, modules), settings, run.device, modules.root
    )
    state = SupervisedState(
        settings=settings, modules=modules, loss=loss, optimizer=optimizer,
        scaler=torch.amp.GradScaler(run.device.type) if settings.mixed_precision == "fp16" else None,
        order=order, names=names, datasets={}, buffers=Buffers(modules.root), team=meeting.here(),
        parameters=[each for group in optimizer.param_groups for each in group["params"]],
    )  # fmt: skip
    if settings.ema_decay:
        by_name = {names[each]: each for each in state.parameters}
        state.average = WeightAverage(by_name, settings.ema_decay)
    return state


def training_steps(trainer: SupervisedTrainer, run: Run, state: SupervisedState) -> Iterator[StepInfo]:
    """Make updates until the plan's number is reached, yielding each as facts."""
    settings, counters = state.settings, state.counters
    assert settings.updates != "auto"
    if counters.updates >= settings.updates:
        return
    windows: Any = _feed(trainer, run, state).windows()
    recovered: list[dict[str, JSON]] = []
    try:
        window = next(windows)
        agreed = state.team.agree(window.units, window.empty)
        while counters.updates < settings.updates:
            if agreed.stop is not None:
                raise agreed.stop
            buffers = state.buffers.copies()
            shortage = following = None
            try:
                update = start_update(run, state, window, agreed)
                # Read the next rows while the device still works on this update.
                following = next(windows) if counters.updates + 1 < settings.updates else None
                agreed = look_ahead(run, state, update, following)
                info = settle_update(trainer, state, update, buffers, recovered)
            except OutOfMemoryHere as error:
                shortage = error.shortage
            except BaseException:
                # A stop in the middle of a window is saved as the instant before it: batch norm has moved.
                state.buffers.put_back(buffers)
                raise
            if shortage is not None:  # outside the except block: nothing holds the failed frames any more
                state.buffers.put_back(buffers)
                recovered.append(make_room(trainer, run, state, shortage, described_inputs(window)))
                windows.close()
                windows = _feed(trainer, run, state).windows()  # from the same position on, cut smaller
                window = next(windows)
                agreed = state.team.agree(window.units, window.empty)
                continue
            yield info
            recovered = []
            stop_when_diverged(state)
            if counters.updates >= settings.updates:
                return
            if following is None:
                following = next(windows)
                agreed = state.team.agree(following.units, following.empty)
            window = following
    finally:
        windows.close()  # ends loader workers


def stop_when_diverged(state: SupervisedState) -> None:
    """Raise :class:`Diverged` when the streak of non-finite updates reached its limit."""
    counters, limit = state.counters, state.settings.nonfinite_limit
    if counters.nonfinite_in_a_row >= limit:
        raise Diverged(
            f"{counters.nonfinite_in_a_row} updates in a row after update {counters.updates} had a "
            "non-finite loss or gradient, and were not applied",
            expected="finite numbers", setting="/hyperparameters/learning_rate",
        )  # fmt: skip


def _order(
    trainer: SupervisedTrainer, run: Run, train: Dataset | Stream, saved: Snapshot | None
) -> Order | None:
    """The order of rows, before anything large is built; None for a stream, which has its own."""
    settings: Hyperparameters = run.settings
    if isinstance(train, Stream) != (settings.epochs is None):
        told = "a stream" if isinstance(train, Stream) else "a dataset with a length"
        raise InternalError(
            f"dataset('train') is {told}, and examine told otherwise",
            expected="rows=None and stream=... of a stream, rows=... of a dataset", setting="examine",
        )  # fmt: skip
    if isinstance(train, Stream):
        return None
    assert settings.global_batch != "auto"
    facts = read_row_facts(train, settings, trainer.name)
    meeting.here().compare("a digest of rows' weights, lengths or groups", facts.digest(), run.check)
    order = Order(
        len(train), settings.global_batch, seed=settings.seed, minimum_rows=trainer.minimum_rows,
        sampling=settings.sampling, batching=settings.batching, facts=facts,
    )  # fmt: skip
    if saved is not None:
        refuse_other_order(order, saved, run.changed)
    return order


def _place(stream: Stream, updates: int, saved: Snapshot | None) -> Place:
    """Where a stream goes on, or begins."""
    document: Any = None if saved is None else saved.values.get("stream")
    if document is None:
        return Place(resume=stream.resume)
    return Place.from_document(document).taken_up(stream.resume, updates)


def _feed(trainer: SupervisedTrainer, run: Run, state: SupervisedState) -> Feed | StreamFeed:
    settings, train = state.settings, state.datasets["train"]
    assert settings.global_batch != "auto"
    assert settings.microbatch != "auto"
    assert settings.dataloader_workers != "auto"
    if isinstance(train, Stream):
        return StreamFeed(
            trainer, run, train, place=state.place or _place(train, 0, None), position=state.counters.position,
            global_batch=settings.global_batch, microbatch=settings.microbatch,
            rank=state.team.rank, ranks=state.team.size,
        )  # fmt: skip
    assert state.order is not None
    return Feed(
        Rows(trainer, run, train, settings.seed), state.order,
        position=state.counters.position, microbatch=settings.microbatch, workers=settings.dataloader_workers,
        rank=state.team.rank, ranks=state.team.size,
    )  # fmt: skip
