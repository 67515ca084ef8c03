"""Owns the arithmetic of windows: how many rows each global batch of one pass has, and their order.

Plain integers, shared by the plan, which counts, and by the order of examples, which deals. This file must not
know which rows they are, and imports neither torch nor numpy.
"""

from __future__ import annotations

import random
from collections.abc import Sequence


def updates_per_epoch(rows: int, global_batch: int, minimum_rows: int = 1) -> int:
    """Updates that one pass makes. The last window is short, or merged when shorter than ``minimum_rows``."""
    full, rest = divmod(rows, global_batch)
    return full + (1 if rest >= minimum_rows else 0)


def window_sizes(rows: int, global_batch: int, minimum_rows: int = 1) -> list[int]:
    """Rows of each window of one pass: the last one is short, or merged into the one before it."""
    windows = max(1, updates_per_epoch(rows, global_batch, minimum_rows))
    return [global_batch] * (windows - 1) + [rows - global_batch * (windows - 1)]


def group_window_sizes(groups: Sequence[int], global_batch: int, minimum_rows: int = 1) -> list[int]:
    """Rows of each window when a window has rows of one group only, group after group.

    Args:
        groups: rows of each group.
        global_batch: rows of a full window.
        minimum_rows: as for :func:`updates_per_epoch`, in each group.
    """
    return [size for rows in groups for size in window_sizes(rows, global_batch, minimum_rows)]


def shuffled(count: int, *, seed: int, epoch: int) -> list[int]:
    """The numbers below ``count`` in an order that depends on seed and epoch alone.

    Python promises the stream of ``random()`` for ever, and not what ``shuffle`` makes of it.
    """
    stream = random.Random(f"{seed}/windows/{epoch}")  # noqa: S311 - an order, not a secret
    keys = [stream.random() for _ in range(count)]
    return sorted(range(count), key=keys.__getitem__)


def examples_seen(
    updates: int, rows: int, global_batch: int, minimum_rows: int = 1, *, groups: Sequence[int] = (),
    seed: int = 0,
) -> int:  # fmt: skip
    """Examples that the first ``updates`` windows hold, short and merged ones included.

    Args:
        updates: windows dealt since the start.
        rows: rows of one pass.
        global_batch: rows of a full window.
        minimum_rows: as for :func:`updates_per_epoch`.
        groups: rows of each group, when a window has rows of one group only.
        seed: the run's seed, which then decides where the short windows are.
    """
    if not groups:
        epochs, rest = divmod(updates, updates_per_epoch(rows, global_batch, minimum_rows))
        return epochs * rows + rest * global_batch
    sizes = group_window_sizes(groups, global_batch, minimum_rows)
    epochs, rest = divmod(updates, len(sizes))
    begun = shuffled(len(sizes), seed=seed, epoch=epochs)[:rest] if rest else []
    return epochs * rows + sum(sizes[each] for each in begun)
