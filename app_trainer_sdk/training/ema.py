"""Owns the moving average of the weights: kept beside training, put in place to evaluate, exported at the end.

The average follows updates that were really made, so a skipped one leaves it alone. This file must not know
optimizers, files or when an evaluation is due.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.values import Snapshot

#: Numbers of narrow weights that are widened at once, in memory of the average's own: 64 MiB.
WIDENED_AT_ONCE = 1 << 24
#: The section of a snapshot that holds it, by the names of the ``model`` section.
SECTION = "ema"


def decay_at(update: int, highest: float) -> float:
    """Decay used after update ``update``, counted from 1: it rises to ``highest`` as the run gets longer.

    ``min(highest, (1 + n) / (10 + n))``, as TensorFlow's ``ExponentialMovingAverage`` with ``num_updates`` and
    diffusers' ``EMAModel``: a short run would otherwise export weights that are mostly the initial ones.
    """
    return min(highest, (1 + update) / (10 + update))


@final
class WeightAverage:
    """The exponential moving average of trainable parameters, kept at full precision.

    Following an update takes no memory that was not taken when the average was made: weights have moved by
    then, and an update that ends there could be neither made nor undone.

    Args:
        parameters: by canonical name; they are read and never replaced.
        decay: the highest decay, in [0, 1).
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        self.decay = decay
        self._parameters = dict(parameters)
        self.tensors = {name: _at_full_precision(each).clone() for name, each in self._parameters.items()}
        narrow = {name for name, each in self._parameters.items() if each.dtype != self.tensors[name].dtype}
        self._narrow = [name for name in self._parameters if name in narrow]
        self._wide = [name for name in self._parameters if name not in narrow]
        most = max((sum(each.numel() for each, _ in group) for group in self._groups()), default=0)
        self._widened = next(iter(self.tensors.values())).new_empty(most, dtype=torch.float32)

    @property
    def memory(self) -> Iterable[Tensor]:
        """Everything it holds."""
        return [*self.tensors.values(), self._widened]

    @torch.no_grad()
    def follow(self, update: int) -> None:
        """Move towards the weights as update ``update`` left them."""
        move = get_ema_multi_avg_fn(decay_at(update, self.decay))  # type: ignore[no-untyped-call]
        if self._wide:
            current = [self._parameters[name].detach() for name in self._wide]
            move([self.tensors[name] for name in self._wide], current, update)
        for group in self._groups():
            current, used = [], 0
            for _, weights in group:
                widened = self._widened[used : used + weights.numel()].view(weights.shape)
                current.append(widened.copy_(weights))
                used += weights.numel()
            move([average for average, _ in group], current, update)

    def _groups(self) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Pieces of the average and of the narrow weights it follows, as many as are widened at once."""
        group: list[tuple[Tensor, Tensor]] = []
        numbers = 0
        for name in self._narrow:
            both = _pieces(self.tensors[name]), _pieces(self._parameters[name].detach())
            for pair in zip(*both, strict=True):
                if group and numbers + pair[0].numel() > WIDENED_AT_ONCE:
                    yield group
                    group, numbers = [], 0
                group.append(pair)
                numbers += pair[0].numel()
        if group:
            yield group

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The model holds the average inside; afterwards its own weights again, bit for bit."""
        parameters = list(self._parameters.values())
        aside = [each.detach().clone() for each in parameters]
        try:
            _copy(parameters, list(self.tensors.values()))
            yield
        finally:
            _copy(parameters, aside)

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from a snapshot's section.

        Raises:
            InternalError: it is of other parameters.
        """
        for name in sorted(saved.keys() ^ self.tensors.keys()):
            where = "the checkpoint's average" if name in self.tensors else "the model"
            raise InternalError(f"{name} is missing in {where}", expected="the same tensors on both sides")
        _copy(list(self.tensors.values()), [saved[name] for name in self.tensors])


def averaged(snapshot: Snapshot) -> Snapshot:
    """The snapshot as evaluation saw it: with the average in the model's place, where one was kept.

    Buffers, such as batch norm's statistics, are those of the live model.
    """
    model = snapshot.section("model")
    average = {
        f"model/{name}": tensor.to(model[name].dtype) for name, tensor in snapshot.section(SECTION).items()
    }
    return Snapshot({**snapshot.tensors, **average}, snapshot.values) if average else snapshot


def _at_full_precision(tensor: Tensor) -> Tensor:
    """A bf16 weight moves by less than its last bit: the average of such weights is kept in fp32."""
    return tensor.detach() if tensor.dtype == torch.float64 else tensor.detach().float()


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    """Views along the first dimension, none larger than can be widened at once, unless one row is."""
    if tensor.numel() <= WIDENED_AT_ONCE:
        return [tensor]
    return torch.split(tensor, max(1, WIDENED_AT_ONCE * len(tensor) // tensor.numel()))


@torch.no_grad()
def _copy(to: list[Tensor], source: list[Tensor]) -> None:
    for target, tensor in zip(to, source, strict=True):
        target.copy_(tensor)
