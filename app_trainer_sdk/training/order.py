"""Owns the global order of training examples: a pure function of (seed, epoch, position).

A permutation per epoch is cut into global batches, those into microbatches, and those are dealt to ranks.
Position is one integer, the examples consumed since the start, so resuming costs no replay, and the ids
trained are the same for any number of workers, ranks and accumulation splits. This file must not know
models, losses or how rows are read.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass

import numpy

from app_trainer_sdk.training.randomness import derive_seed


@dataclass(frozen=True)
class Window:
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


class Order:
    """Windows by position.

    Args:
        rows: rows of the training split.
        global_batch: examples of one update.
        seed: the run's seed.
        minimum_rows: a last window with fewer rows is merged into the one before it (batch norm cannot
            train on a single row).
    """

    def __init__(self, rows: int, global_batch: int, *, seed: int, minimum_rows: int = 1) -> None:
        self.rows = rows
        self.global_batch = global_batch
        self.seed = seed
        self.minimum_rows = minimum_rows
        self._cached: tuple[int, numpy.ndarray] = (-1, numpy.empty(0, dtype=numpy.int64))

    def window(self, position: int) -> Window:
        """The window that starts at ``position``, where another one ended."""
        epoch, start = divmod(position, self.rows)
        if self.rows - start < self.minimum_rows:  # a resume with another batch or other rows came out here
            epoch, start = epoch + 1, 0
        end = start + self.global_batch
        if self.rows - end < self.minimum_rows:  # nothing is left, or too little for a window of its own
            end = self.rows
        ids = self.permutation(epoch)[start:end]
        return Window(position, epoch, ids, epoch * self.rows + end)

    def permutation(self, epoch: int) -> numpy.ndarray:
        """All row numbers of one epoch, int64, shape (rows,).

        Sorting a raw Philox stream keeps the order the same under every numpy version: numpy promises the
        streams of its bit generators, and not what ``Generator.permutation`` makes of them.
        """
        if self._cached[0] != epoch:
            stream = numpy.random.Philox(key=derive_seed(self.seed, "order", epoch))
            order = numpy.argsort(stream.random_raw(self.rows), kind="stable").astype(numpy.int64)
            self._cached = (epoch, order)
        return self._cached[1]


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
