"""Owns what lives during ordinary training, and how it becomes a snapshot and comes back.

This file must not know how an update is computed, files or events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training import ema, optimizer_state
from app_trainer_sdk.training.ema import WeightAverage
from app_trainer_sdk.training.model_state import Buffers, load_tensors, saved_tensors, ties
from app_trainer_sdk.training.order import Order
from app_trainer_sdk.training.replica import Replica
from app_trainer_sdk.training.stream_feed import Place
from app_trainer_sdk.training.team import Team
from app_trainer_sdk.training.wrap import LossModule
from app_trainer_sdk.values import JSON, Dataset, Modules, Snapshot, Stream


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
        out_of_memory: times that memory ran out and an update was made again with a smaller microbatch.
        microbatch: rows of a microbatch since then; 0 for as planned.
    """

    position: int = 0
    updates: int = 0
    skipped: int = 0
    without_units: int = 0
    empty_microbatches: int = 0
    nonfinite_in_a_row: int = 0
    examples: int = 0
    units: float = 0.0
    out_of_memory: int = 0
    microbatch: int = 0


@dataclass
class SupervisedState:
    """What lives during training. Data that has rows has an ``order``, a stream has a ``place``."""

    settings: Hyperparameters
    modules: Modules
    loss: LossModule
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler | None
    order: Order | None
    parameters: list[nn.Parameter]
    names: dict[Tensor, str]
    datasets: dict[str, Dataset | Stream]
    buffers: Buffers
    team: Team
    average: WeightAverage | None = None
    replica: Replica | None = None
    place: Place | None = None
    counters: Counters = field(default_factory=Counters)
    largest: int = 0  # size of the largest microbatch whose backward this process has made
    measured_rows: int = 0  # most rows an evaluation measures at once since memory ran out in it; 0 for all

    def gradients(self) -> list[Tensor]:
        """Those that are there, in the order of the parameters."""
        return [each.grad for each in self.parameters if each.grad is not None]

    def drop_gradients(self) -> None:
        """As ``zero_grad`` of the optimizer does, in a hundredth of its time: it groups and profiles."""
        for parameter in self.parameters:
            parameter.grad = None

    def use_microbatch(self, rows: int) -> None:
        """Go on with a smaller microbatch at the same global batch."""
        self.counters.microbatch = rows
        self.settings = self.settings.model_copy(update={"microbatch": rows})


def snapshot(state: SupervisedState) -> Snapshot:
    """Everything the next update depends on. All of it describes the same instant: between two updates."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in saved_tensors(state.modules.root).items():
        tensors[f"model/{name}"] = tensor
    optimizer_tensors, optimizer_values = optimizer_state.optimizer_snapshot(
        state.optimizer, state.modules.root
    )
    tensors |= {f"optimizer/{name}": tensor for name, tensor in optimizer_tensors.items()}
    if state.average is not None:
        tensors |= {f"{ema.SECTION}/{name}": tensor for name, tensor in state.average.tensors.items()}
    values: dict[str, Any] = {
        "counters": vars(state.counters).copy(),
        "optimizer": optimizer_values,
        "ties": ties(state.modules.root),
    }
    if state.order is not None:
        values["order"] = {"digest": state.order.facts.digest()}
    if state.place is not None:
        values["stream"] = state.place.document()
    if state.scaler is not None:
        values["scaler"] = state.scaler.state_dict()
    return Snapshot(tensors, values)


def refuse_other_order(order: Order, saved: Snapshot, changed: Sequence[Mapping[str, JSON]]) -> None:
    """Raise when weights, lengths or groups of rows are not those the checkpoint was trained with.

    A trainer's fingerprint of the data need not cover them. Where this resume was allowed to change something,
    they may follow from it.
    """
    before = _mapping(saved.values.get("order", {})).get("digest", "")
    now = order.facts.digest()
    made = _mapping(saved.values["counters"])["updates"]
    if before != now and not any(each["step"] == made for each in changed):
        raise BadJob(
            f"the digest of the training rows' weights, lengths or groups is {now!r}",
            expected=f"{before!r}, as in the checkpoint, or resuming would not be exact",
            setting="the dataset back, or give another --job-dir",
        )  # fmt: skip


def restore(state: SupervisedState, saved: Snapshot) -> None:
    """Put a snapshot back into a state that was just built, in place."""
    load_tensors(state.modules.root, saved.section("model"))
    optimizer_state.restore_optimizer(
        state.optimizer, state.modules.root, saved.section("optimizer"), _mapping(saved.values["optimizer"])
    )
    if state.average is not None:
        state.average.restore(saved.section(ema.SECTION))
    state.counters = Counters(**_mapping(saved.values["counters"]))
    planned = state.settings.microbatch
    if isinstance(planned, int) and 0 < state.counters.microbatch < planned:
        state.use_microbatch(state.counters.microbatch)
    if state.scaler is not None and "scaler" in saved.values:  # not where fp16 is what a resume changed
        state.scaler.load_state_dict(dict(_mapping(saved.values["scaler"])))


def _mapping(value: Any) -> Mapping[str, Any]:
    assert isinstance(value, Mapping)
    return value
