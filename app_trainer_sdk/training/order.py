"""Owns the global order of training examples: a pure function of (seed, epoch, position).

``sampling`` says which rows an epoch has and in which order, ``batching`` how they are cut into global batches;
those are cut into microbatches, and these are dealt to ranks. Position is one integer, the examples consumed
since the start, so resuming costs one epoch's order and no replay, and the ids trained are the same for any
number of workers, ranks and accumulation splits. This file must not know models, losses or how rows are read.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import NamedTuple

import numpy

from app_trainer_sdk.training.randomness import derive_seed
from app_trainer_sdk.training.row_facts import RowFacts
from app_trainer_sdk.windows import group_window_sizes, shuffled, updates_per_epoch

#: Rows of similar length are looked for in so many windows, or in a quarter of the epoch where that is less, so
#: that batches stay random; as transformers 5.24 does in ``trainer_pt_utils.py::get_length_grouped_indices``.
WINDOWS_SORTED_TOGETHER = 50
#: Orders kept. Loader workers are asked for the next epoch while the last one's windows are still trained on.
EPOCHS_KEPT = 2


class Window(NamedTuple):
    """The examples of one update.

    Attributes:
        position: examples consumed before this window.
        epoch: which pass it belongs to, from 0.
        ids: row numbers, int64, in order.
        after: examples consumed after it.
    """

    position: int
    epoch: int
    ids: numpy.ndarray
    after: int

    def digest(self) -> str:
        """Digest of the ids in order: two runs that train the same rows have the same digests."""
        return hashlib.sha256(self.ids.tobytes()).hexdigest()[:16]


@dataclass(frozen=True)
class Epoch:
    """One pass.

    Attributes:
        ids: row numbers, int64, shape (rows,).
        edges: where its windows begin, and where the last one ends, int64, shape (windows + 1,); None where it
            may be cut anywhere.
    """

    ids: numpy.ndarray
    edges: numpy.ndarray | None = None


class Order:
    """Windows by position.

    Args:
        rows: rows of the training split.
        global_batch: examples of one update.
        seed: the run's seed.
        minimum_rows: a last window with fewer rows is merged into the one before it (batch norm cannot
            train on a single row).
        sampling: ``shuffled``, ``weighted`` (drawn with replacement) or ``sequential``.
        batching: ``mixed``, ``by_length`` or ``by_group``.
        facts: what the dataset says of its rows, where one of the two asks for it.
    """

    def __init__(
        self, rows: int, global_batch: int, *, seed: int, minimum_rows: int = 1, sampling: str = "shuffled",
        batching: str = "mixed", facts: RowFacts | None = None,
    ) -> None:  # fmt: skip
        self.rows = rows
        self.global_batch = global_batch
        self.seed = seed
        self.minimum_rows = minimum_rows
        self.sampling = sampling
        self.batching = batching
        self.facts = facts or RowFacts()
        self._kept: dict[int, Epoch] = {}
        self._last: Window | None = None

    @property
    def repeats(self) -> bool:
        """Whether an epoch may have a row more than once."""
        return self.sampling == "weighted"

    def window(self, position: int) -> Window:
        """The window that starts at ``position``, where another one ended.

        A resume with another batch or other rows may come out inside a window: mixed rows are cut anew from
        there; sorted ones begin with the rest of that window. What is too short to train on is passed over.
        """
        # Whoever reads a window asks for it first, and whoever trains on it right afterwards.
        if self._last is None or self._last.position != position:
            self._last = self._window(position)
        return self._last

    def _window(self, position: int) -> Window:
        number, start = divmod(position, self.rows)
        if self.rows - start < self.minimum_rows:
            number, start = number + 1, 0
        epoch = self.epoch(number)
        if epoch.edges is None:
            end = start + self.global_batch
            if self.rows - end < self.minimum_rows:  # nothing is left, or too little for a window of its own
                end = self.rows
        else:
            at = int(numpy.searchsorted(epoch.edges, start, side="right"))
            end = int(epoch.edges[at])
            if end - start < self.minimum_rows:
                start, end = end, int(epoch.edges[at + 1])
        return Window(position, number, epoch.ids[start:end], number * self.rows + end)

    def epoch(self, number: int) -> Epoch:
        """One pass in order."""
        if number not in self._kept:
            while len(self._kept) >= EPOCHS_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[number] = self._batched(number, self._sampled(number))
        return self._kept[number]

    def _sampled(self, number: int) -> numpy.ndarray:
        """Row numbers of one pass as sampling says.

        Raw Philox streams keep the order the same under every numpy version: numpy promises the streams of its
        bit generators, and not what ``Generator.permutation`` or ``Generator.choice`` make of them.
        """
        if self.sampling == "sequential":
            return numpy.arange(self.rows, dtype=numpy.int64)
        stream = numpy.random.Philox(key=derive_seed(self.seed, "order", number)).random_raw(self.rows)
        if self.sampling == "weighted":
            assert self.facts.weights is not None
            return _drawn(self.facts.weights, stream)
        return numpy.argsort(stream, kind="stable").astype(numpy.int64, copy=False)

    def _batched(self, number: int, ids: numpy.ndarray) -> Epoch:
        """Cut one pass into windows as batching says."""
        if self.batching == "by_length":
            return self._by_length(number, ids)
        if self.batching == "by_group":
            return self._by_group(number, ids)
        return Epoch(ids)

    def _by_length(self, number: int, ids: numpy.ndarray) -> Epoch:
        """Sort stretches of many windows by length, and shuffle the windows; the uneven one stays last."""
        assert self.facts.lengths is not None
        batch = self.global_batch
        stretch = batch * max(1, min(self.rows // (4 * batch), WINDOWS_SORTED_TOGETHER))
        ids = ids[numpy.lexsort((-self.facts.lengths[ids], numpy.arange(self.rows) // stretch))]
        edges = numpy.arange(max(1, updates_per_epoch(self.rows, batch, self.minimum_rows)) + 1) * batch
        edges[-1] = self.rows
        even = len(edges) - 1 - (edges[-1] - edges[-2] != batch)
        windows = ids[: even * batch].reshape(even, batch)[shuffled(even, seed=self.seed, epoch=number)]
        return Epoch(numpy.concatenate([windows.reshape(-1), ids[even * batch :]]), edges)

    def _by_group(self, number: int, ids: numpy.ndarray) -> Epoch:
        """Cut each group for itself, and shuffle the windows of all groups."""
        assert self.facts.groups is not None
        ids = ids[numpy.argsort(self.facts.groups[ids], kind="stable")]
        sizes = group_window_sizes(self.facts.group_sizes, self.global_batch, self.minimum_rows)
        starts = _edges(sizes)[:-1]
        windows = shuffled(len(sizes), seed=self.seed, epoch=number)
        edges = _edges([sizes[each] for each in windows])
        places = numpy.arange(self.rows) + numpy.repeat(starts[windows] - edges[:-1], numpy.diff(edges))
        return Epoch(ids[places], edges)


def cut(count: int, microbatch: int, *, minimum_rows: int = 1) -> list[tuple[int, int]]:
    """Cut ``count`` rows into microbatches: ``(start, end)`` pairs of at most ``microbatch`` rows.

    With ``minimum_rows`` above 1, pieces are evened out so that none is smaller, even if one is larger.
    """
    rest = count % microbatch or microbatch
    if min(rest, microbatch) >= minimum_rows:
        return [(start, min(start + microbatch, count)) for start in range(0, count, microbatch)]
    pieces = max(1, min(-(-count // microbatch), count // minimum_rows))
    edges = [round(piece * count / pieces) for piece in range(pieces + 1)]
    return list(itertools.pairwise(edges))


def _drawn(weights: numpy.ndarray, stream: numpy.ndarray) -> numpy.ndarray:
    """One row for each number of the stream, with replacement: the inverse of the cumulated weights."""
    cumulated = numpy.cumsum(weights)
    shares = (stream >> numpy.uint64(11)).astype(numpy.float64) * 2.0**-53  # 53 bits: in [0, 1), exactly
    rows: numpy.ndarray = numpy.searchsorted(cumulated, shares * cumulated[-1], side="right")
    return rows.astype(numpy.int64, copy=False)


def _edges(sizes: list[int]) -> numpy.ndarray:
    return numpy.concatenate([[0], numpy.cumsum(numpy.asarray(sizes, dtype=numpy.int64))])
