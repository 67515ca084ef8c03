"""Owns what several ranks agree on: divisors, wishes to stop, metrics, and who goes first.

A process that trains alone is a team of one, for which everything here costs nothing and asks nobody. No rank
leaves the others alone in the middle of something: wishes to stop travel with the numbers of the next window,
so all of them stop after the same update. This file must not know losses, optimizers, files or events, nor how
ranks found each other.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store  # torch.distributed's, with their types

from app_trainer_sdk.errors import InternalError, PeerFailed, StopReason, StopRequested
from app_trainer_sdk.time_split import timed
from app_trainer_sdk.training.metrics import read_pairs
from app_trainer_sdk.values import LossTerms

Pairs = Mapping[str, tuple[Tensor | float, Tensor | float]]

POLL_SECONDS = 0.02
_NOTHING = contextlib.nullcontext()
#: Longer than any save or start that others wait for. A rank that ended is noticed by the supervisor at once.
COLLECTIVE_TIMEOUT = datetime.timedelta(hours=2)
REASONS: tuple[StopReason, ...] = ("interrupted", "deadline", "canceled")


class Agreement(NamedTuple):
    """What all ranks know before a window's first backward.

    Attributes:
        units: units of the window, over all ranks.
        empty: its microbatches without a unit.
        stop: a wish to stop that some rank has heard; all of them follow it now.
        names: metrics that some rank had in the update before.
        news: whether one of those is a name that not all ranks know yet.
        short: whether memory ran out on some rank in the update that is under way.
    """

    units: float
    empty: int
    stop: StopRequested | None = None
    names: tuple[str, ...] = ()
    news: bool = False
    short: bool = False


def nobody_asked() -> StopRequested | None:
    """No wish to stop."""
    return None


class Team:
    """The ranks of a run, as one of them sees them.

    Args:
        rank: which one this is.
        size: how many there are.
        store: where they leave word for each other.
        asked: the wish to stop that this rank has heard, if any.
    """

    def __init__(
        self, rank: int = 0, size: int = 1, *, store: Store | None = None,
        asked: Callable[[], StopRequested | None] = nobody_asked,
    ) -> None:  # fmt: skip
        self.rank = rank
        self.size = size
        self._store = store
        self._asked = asked
        self._control: dist.ProcessGroup | None = None
        self._names: tuple[str, ...] = ()

    @property
    def speaks(self) -> bool:
        """Whether this rank writes files and tells the supervisor: rank 0 alone."""
        return self.rank == 0

    def check(self) -> None:
        """Raise a wish to stop that cannot wait for the others; ``agree`` brings all the rest."""
        asked = self._asked()
        if asked is not None and (self.size == 1 or asked.reason == "peer" or not asked.checkpoint):
            raise asked

    @contextlib.contextmanager
    def first(self, name: str, check: Callable[[], None]) -> Iterator[None]:
        """Rank 0 does what is inside before the others begin it; they call ``check`` while they wait."""
        if self.rank:
            self._await([name], check)
        yield
        if self._store is not None and self.rank == 0:
            self._store.set(name, "done")

    def compare(self, name: str, value: str, check: Callable[[], None]) -> None:
        """Refuse to go on when this rank found something else than rank 0."""
        if self._store is None:
            return
        if self.rank == 0:
            self._store.set(name, value)
            return
        self._await([name], check)
        theirs = self._store.get(name).decode()
        if theirs != value:
            raise InternalError(f"rank {self.rank} found {name} {value!r}", expected=f"{theirs!r}, as rank 0")

    def connect(self, device: torch.device, check: Callable[[], None]) -> None:
        """Form the groups: one over the device, and one over the host for what is agreed."""
        if self._store is None or self._control is not None:
            return
        self._gather_at_the_gate(self._store, check)
        options: dict[str, Any] = {
            "store": PrefixStore("group", self._store),
            "timeout": COLLECTIVE_TIMEOUT,
        }
        if device.type == "cuda":
            torch.cuda.set_device(device)
            options["device_id"] = device
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, rank=self.rank, world_size=self.size, **options)
        self._control = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)

    def exchanging(self) -> contextlib.AbstractContextManager[None]:
        """Inside, ranks tell each other something, or wait for each other: the time belongs to that."""
        return timed("communication") if self.size > 1 else _NOTHING

    def agree(self, units: float, empty: int, metrics: Iterable[str] = (), *, short: bool = False) -> Agreement:
        """One small exchange on the host, a window ahead: divisor, wishes to stop, names of metrics, memory.

        Args:
            units: this rank's units of the next window.
            empty: its microbatches without a unit.
            metrics: what this rank measured in the update that is under way.
            short: whether this rank ran out of memory in it.
        """
        if self.size == 1:
            return Agreement(units, empty, short=short)
        here = set(metrics)
        known = [float(name in here) for name in self._names]
        news = float(not here.issubset(self._names))
        numbers = torch.tensor([units, empty, news, short, *_flags(self._asked()), *known], dtype=torch.float64)
        dist.all_reduce(numbers, group=self._control)
        units, empties, news, shortages, *rest = numbers.tolist()
        flags, counts = rest[: len(REASONS) + 1], rest[len(REASONS) + 1 :]
        names = tuple(name for name, count in zip(self._names, counts, strict=True) if count)
        return Agreement(units, int(empties), _wish(flags), names, bool(news), bool(shortages))

    def total(
        self, loss: Tensor | float, metrics: Pairs, agreed: Agreement, device: torch.device
    ) -> tuple[Tensor | float, Pairs]:
        """Loss and metrics of one update summed over ranks, on the device, in one exchange."""
        if self.size == 1:
            return loss, metrics
        names = self._learn(metrics) if agreed.news else agreed.names
        pairs = [metrics.get(name, (0.0, 0.0)) for name in names]
        values = [loss, *(value for pair in pairs for value in pair)]
        sums = torch.stack([_number(value, device) for value in values])
        dist.all_reduce(sums)
        return sums[0], {name: (sums[2 * at + 1], sums[2 * at + 2]) for at, name in enumerate(names)}

    def merge(self, terms: LossTerms | None) -> LossTerms:
        """One round of an evaluation: each rank's batch, or None where it has none, as one.

        Raises:
            StopRequested: on all ranks, when one of them has heard a wish to stop.
        """
        if self.size == 1:
            assert terms is not None
            return terms
        mine = read_pairs(terms.metrics) if terms is not None else {}
        recovered = [dict(each) for each in terms.recovered] if terms is not None else []
        everyone: list[Any] = self._gather([_flags(self._asked()), mine, recovered])
        stop = _wish([sum(column) for column in zip(*(flags for flags, *_ in everyone), strict=True)])
        if stop is not None:
            raise stop
        sums: dict[str, tuple[Tensor | float, Tensor | float]] = {}
        for _, pairs, _ in everyone:
            for name, (value, count) in pairs.items():
                before = sums.get(name, (0.0, 0.0))
                sums[name] = (before[0] + value, before[1] + count)
        tried = [each for *_, some in everyone for each in some]
        return LossTerms(torch.tensor(0.0), metrics=sums, recovered=tried)

    def anywhere(self, here: Sequence[bool]) -> list[bool]:
        """For each place, whether it is true on some rank."""
        if self.size == 1:
            return list(here)
        counts = torch.tensor([int(each) for each in here], dtype=torch.int32)
        dist.all_reduce(counts, group=self._control)
        return [bool(count) for count in counts.tolist()]

    def follow(self, tensors: Sequence[Tensor]) -> None:
        """Make tensors equal to rank 0's."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor, src=0)

    def _gather_at_the_gate(self, store: Store, check: Callable[[], None]) -> None:
        """Joining cannot be interrupted: nobody begins it before all are there, and then nobody leaves.

        The first word at the gate stands: of a rank that saw all of them, or of one that was asked to stop.
        """
        store.set(f"ready-{self.rank}", "yes")
        try:
            self._await([f"ready-{rank}" for rank in range(self.size)], check)
        except StopRequested as stop:
            hurries = stop.reason == "peer" or not stop.checkpoint
            if hurries or store.compare_set("gate", "", "left") == b"left":
                raise
            return
        if store.compare_set("gate", "", "join") != b"join":
            raise self._asked() or PeerFailed("another rank was asked to stop before all had met")

    def _learn(self, metrics: Pairs) -> tuple[str, ...]:
        """Names that some rank measured for the first time; the names of this update."""
        here = {str(name) for names in self._gather(sorted(metrics)) for name in names}
        self._names = tuple(sorted({*self._names, *here}))
        return tuple(sorted(here))

    def _gather(self, value: Any) -> list[Any]:
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, value, group=self._control)
        return everyone

    def _await(self, names: list[str], check: Callable[[], None]) -> None:
        assert self._store is not None
        while not self._store.check(names):
            check()
            time.sleep(POLL_SECONDS)


def _flags(asked: StopRequested | None) -> list[float]:
    """A wish as numbers that add up: one for each reason, and one that gives up the checkpoint."""
    if asked is None:
        return [0.0] * (len(REASONS) + 1)
    return [*(float(asked.reason == reason) for reason in REASONS), float(not asked.checkpoint)]


def _wish(flags: Sequence[float]) -> StopRequested | None:
    *reasons, hurry = flags
    for reason, count in zip(REASONS, reasons, strict=True):
        if count:
            return StopRequested(reason, checkpoint=not hurry)
    return None


def _number(value: Tensor | float, device: torch.device) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64, device=device).detach().reshape(())
