"""Owns the way from row numbers to microbatches on the device, one whole window at a time.

A window is read as a whole before its first backward, so that the loss's divisor is known. With workers
the reading runs in other processes; ids, contents and order do not change. This file must not know the
loss or the optimizer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from app_trainer_sdk.data_wait import ReadTimes
from app_trainer_sdk.errors import refuse_other
from app_trainer_sdk.fetch_time import take_fetch_seconds
from app_trainer_sdk.time_split import timed
from app_trainer_sdk.training.data_worker import start_worker
from app_trainer_sdk.training.interrupts import interruptible
from app_trainer_sdk.training.order import Order, Window, cut
from app_trainer_sdk.training.randomness import Random, derive_seed, global_seeds
from app_trainer_sdk.values import Batch, Dataset

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.training.stream_feed import Place


#: Batches that each worker reads ahead.
PREFETCHED = 2
#: What a loader is asked for: the epoch and the row numbers of one microbatch. Where an epoch may have a row
#: twice, also the first one's place in the order, so that each time the row is drawn it is augmented anew.
Request = tuple[int, tuple[int, ...]] | tuple[int, tuple[int, ...], int]


class Microbatch(NamedTuple):
    """One forward and backward.

    Attributes:
        batch: on the host.
        number: its number inside the window, over all ranks.
        first: the window's row it begins with.
        rows: how many rows it holds.
    """

    batch: Batch
    number: int
    first: int
    rows: int

    @property
    def size(self) -> int:
        """What its memory grows with: elements of its tensors, or rows where there are none."""
        return sum(each.numel() for each in self.batch.tensors.values()) or self.rows


class LoadedWindow(NamedTuple):
    """A window with its rows read.

    Attributes:
        window: position, epoch and ids.
        microbatches: this rank's share, which may be none.
        pieces: microbatches of the window over all ranks.
        seconds: time the training thread waited for it.
        place: where a stream stands after it; None for rows.
        times: what reading this rank's share took, where it was done.
    """

    window: Window
    microbatches: Sequence[Microbatch]
    pieces: int
    seconds: float
    place: Place | None = None
    times: ReadTimes = ReadTimes()

    @property
    def units(self) -> float:
        """Units of this rank's share."""
        return float(sum(each.batch.units for each in self.microbatches))

    @property
    def last_size(self) -> int:
        """Size of this rank's last microbatch; 0 without one."""
        return self.microbatches[-1].size if self.microbatches else 0

    @property
    def empty(self) -> int:
        """Microbatches of this rank's share without a unit."""
        return sum(1 for each in self.microbatches if not each.batch.units)


class Rows:
    """A dataset seen as something that turns a request into a batch; what a loader worker holds."""

    def __init__(self, trainer: SupervisedTrainer, run: Run, dataset: Dataset, seed: int) -> None:
        self.trainer = trainer
        self.run = run
        self.dataset = dataset
        self.seed = seed
        self.uses_global_random = bool(getattr(dataset, "uses_global_random", False))

    def __getitem__(self, request: Request) -> Batch:
        return self.collate(self.items(request))

    def collate(self, items: Sequence[Any]) -> Batch:
        """A batch of items, as the trainer makes it."""
        return refuse_other(self.trainer.collate(self.run, items), Batch, "collate")

    def items(self, request: Request) -> list[Any]:
        """The rows of a request, each with the randomness of its position."""
        epoch, indices, *first = request
        item = self._seeded_item if self.uses_global_random else self.dataset.item
        if first:
            draws = enumerate(indices, start=first[0])
            return [item(index, Random(self.seed, "item", epoch, index, draw)) for draw, index in draws]
        return [item(index, Random(self.seed, "item", epoch, index)) for index in indices]

    def _seeded_item(self, index: int, random: Random) -> Any:
        with global_seeds(random.seed):
            return self.dataset.item(index, random)


class TimedRows:
    """Rows with how long reading took, wherever it is done: what a loader asks."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __getitem__(self, request: Request) -> tuple[Batch, ReadTimes]:
        return timed_batch(lambda: self.rows.items(request), self.rows.collate)


def timed_batch(
    read: Callable[[], list[Any]], collate: Callable[[list[Any]], Batch]
) -> tuple[Batch, ReadTimes]:
    """A batch, and what reading and collating took."""
    take_fetch_seconds()  # of something else
    started = time.perf_counter()
    items = read()
    between = time.perf_counter()
    fetch = min(take_fetch_seconds(), between - started)
    batch = collate(items)
    return batch, ReadTimes(fetch, between - started - fetch, time.perf_counter() - between)


class Feed:
    """Windows from a position on, for one rank.

    Args:
        rows: the training split.
        order: the global order.
        position: where to start.
        microbatch: rows of one microbatch.
        workers: loader processes; 0 reads here.
        rank, ranks: this rank's place: microbatch k of a window belongs to rank k mod ranks.
    """

    def __init__(
        self, rows: Rows, order: Order, *, position: int, microbatch: int, workers: int = 0, rank: int = 0,
        ranks: int = 1,
    ) -> None:  # fmt: skip
        self.rows = rows
        self.order = order
        self.position = position
        self.microbatch = microbatch
        self.workers = workers
        self.rank = rank
        self.ranks = ranks

    def windows(self) -> Iterator[LoadedWindow]:
        """Windows without end; close the iterator to end the workers."""
        ahead = self._read_ahead() if self.workers else None
        rows, position = TimedRows(self.rows), self.position
        try:
            while True:
                started = time.perf_counter()
                window = self.order.window(position)
                pieces = self._cut(window)
                share = self._share(pieces)
                # An item may take long, or never come.
                with timed("data_wait"), interruptible(really=self.ranks == 1):
                    if ahead is None:
                        read = [rows[self._request(window, piece)] for _, piece in share]
                    else:
                        read = [next(ahead) for _ in share]
                yield loaded_window(window, share, len(pieces), read, time.perf_counter() - started)
                position = window.after
        finally:
            if ahead is not None:
                ahead.close()

    def _cut(self, window: Window) -> list[tuple[int, int]]:
        return cut_window(self.rows.trainer, len(window.ids), self.microbatch)

    def _share(self, pieces: list[tuple[int, int]]) -> list[tuple[int, tuple[int, int]]]:
        """This rank's microbatches of a window, each with its number among those of all ranks."""
        return list(enumerate(pieces))[self.rank :: self.ranks]

    def _requests(self) -> Iterator[Request]:
        position = self.position
        while True:
            window = self.order.window(position)
            for _, piece in self._share(self._cut(window)):
                yield self._request(window, piece)
            position = window.after

    def _request(self, window: Window, piece: tuple[int, int]) -> Request:
        start, end = piece
        indices = tuple(window.ids[start:end].tolist())
        if self.order.repeats:
            return window.epoch, indices, window.after - len(window.ids) + start
        return window.epoch, indices

    def _read_ahead(self) -> Generator[tuple[Batch, ReadTimes], None, None]:
        # A generator of its own: making a DataLoader iterator draws from torch's global one otherwise.
        generator = torch.Generator().manual_seed(derive_seed(self.rows.seed, "workers"))
        rows: Any = TimedRows(self.rows)  # indexed by requests, which torch's annotations do not foresee
        # Forked, whatever this Python's default is: a dataset and a run need not be picklable.
        loader: DataLoader[tuple[Batch, ReadTimes]] = DataLoader(
            rows, batch_size=None, sampler=_Requests(self._requests), num_workers=self.workers,
            generator=generator, multiprocessing_context="fork", worker_init_fn=start_worker,
            collate_fn=_as_it_is, prefetch_factor=PREFETCHED,
        )  # fmt: skip
        batches = iter(loader)
        try:
            yield from batches
        finally:
            del batches  # ends the workers


def loaded_window(
    window: Window, share: list[tuple[int, tuple[int, int]]], count: int,
    read: Sequence[tuple[Batch, ReadTimes]], seconds: float, before: ReadTimes = ReadTimes(),  # noqa: B008
    place: Place | None = None,
) -> LoadedWindow:  # fmt: skip
    """A window of what was read for this rank's share of its ``count`` microbatches, after ``before``."""
    microbatches = [
        Microbatch(batch, number, start, end - start)
        for (number, (start, end)), (batch, _) in zip(share, read, strict=True)
    ]
    each = [times for _, times in read]
    times = ReadTimes.total([before, *each] if any(before) else each)
    return LoadedWindow(window, microbatches, count, seconds, place, times)


def cut_window(trainer: SupervisedTrainer, rows: int, microbatch: int) -> list[tuple[int, int]]:
    """The microbatches of a window of so many rows, of all ranks."""
    if trainer.coupled_rows:
        return [(0, rows)]  # a merged window is longer than a microbatch, and whole all the same
    return cut(rows, microbatch, minimum_rows=trainer.minimum_rows)


class _Requests:
    """A sampler: anything a loader can iterate over again."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Request]:
        return self._make()  # type: ignore[no-any-return]


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on ``device``."""
    if device.type == "cpu":
        return batch
    moved: Mapping[str, torch.Tensor] = {
        name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in batch.tensors.items()
    }
    return replace(batch, tensors=moved)


def _as_it_is(value: Any) -> Any:
    return value
