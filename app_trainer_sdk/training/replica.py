"""Owns a rank's copy of the model with its loss, and how gradients of all ranks become one.

This file must not know optimizers, or what the ranks agree on besides.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training.feed import Microbatch
from app_trainer_sdk.training.team import Team
from app_trainer_sdk.values import LossTerms

#: Torch 2.13 gave the option another name; once it is the oldest supported, the second one may go.
FORWARD_SYNC = next(
    name
    for name in ("forward_sync_buffers", "broadcast_buffers")
    if name in inspect.signature(DistributedDataParallel).parameters
)


class Replica:
    """This rank's copy of the model with its loss, whose gradients become the sum over all ranks.

    Torch's DDP carries them while the last backward of an update still runs, where that can be. Where a rank
    has no such backward (no rows, no units) or a parameter may lack a gradient, a pass over nothing does.

    Args:
        loss: model and loss.
        team: the ranks.
        may_lack: whether a parameter need not have a gradient in every backward.
    """

    def __init__(self, loss: nn.Module, team: Team, *, may_lack: bool = False) -> None:
        self._team = team
        self._may_lack = may_lack
        self._parameters = [each for each in loss.parameters() if each.requires_grad]
        # Buffers are made equal once an update is applied, and not before each forward.
        options: dict[str, Any] = {FORWARD_SYNC: False}
        self._parallel = DistributedDataParallel(_Anchored(loss), **options)
        # DDP lays out its buckets anew after its first backward, and sums depend on the layout in their last
        # bit: it is final before the first update, of a fresh run as of a resumed one.
        for _ in range(2):
            self._pass_over_nothing()
        for parameter in self._parameters:
            parameter.grad = None

    def __call__(self, *arguments: Any) -> LossTerms:
        """The loss of a microbatch."""
        terms: LossTerms = self._parallel(*arguments)
        return terms

    def quiet(self) -> contextlib.AbstractContextManager[None]:
        """Inside, gradients add up on this rank alone."""
        return self._parallel.no_sync()

    @property
    def factor(self) -> float:
        """What the loss is multiplied by on the way back: DDP divides by the number of ranks."""
        return float(self._team.size)

    def overlaps(self, microbatches: Sequence[Microbatch], *, first: bool) -> bool:
        """Whether the last microbatch's backward can carry the gradients of the update."""
        has_backward = bool(microbatches) and microbatches[-1].batch.units > 0
        return has_backward and not self._careful(first)

    def refuse_unfinished(self) -> None:
        """Raise when a parameter had no gradient in the backward that was to carry all of them."""
        try:
            self._parallel.reducer._check_reducer_finalized()
        except RuntimeError as error:
            raise InternalError(
                f"a microbatch gave no gradient to some trainable parameter: {error}",
                expected="a gradient for every one, or its name in may_lack_gradient of the trainer",
            ) from error

    def reduce(self, *, first: bool) -> None:
        """Sum up the gradients of all ranks now; one that no rank has stays away."""
        there = [True] * len(self._parameters)
        if self._careful(first):
            there = self._team.anywhere([each.grad is not None for each in self._parameters])
        self._pass_over_nothing()
        for parameter, is_there in zip(self._parameters, there, strict=True):
            if not is_there:
                parameter.grad = None

    def _careful(self, first: bool) -> bool:
        """Before the first update nobody knows yet whether every parameter gets a gradient."""
        return first or self._may_lack

    def _pass_over_nothing(self) -> None:
        self._parallel(None, None).backward()


class _Anchored(nn.Module):
    """Model and loss, or with no batch a scalar that every parameter has the gradient zero of."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, batch: Any, random: Any) -> Any:
        if batch is not None:
            return self.loss(batch, random)
        trainable = [each for each in self.parameters() if each.requires_grad]
        sums = torch.stack([each.sum().float() for each in trainable])
        return (sums * 0.0).sum()
