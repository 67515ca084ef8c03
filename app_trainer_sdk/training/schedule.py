"""Owns the learning rate as a pure function of updates really made. It must not know the optimizer."""

from __future__ import annotations

import math
from typing import Literal


def learning_rate(
    update: int,
    *,
    highest: float,
    updates: int,
    warmup: int,
    shape: Literal["cosine", "linear", "constant"],
    final_ratio: float,
) -> float:
    """The rate that update number ``update`` uses, counted from 0.

    Args:
        update: updates made before this one; skipped ones do not count.
        highest: the rate after the warm-up.
        updates: updates of the whole run.
        warmup: updates over which the rate rises linearly; the first one already moves.
        shape: how it falls afterwards.
        final_ratio: the rate at the end as a share of ``highest``.
    """
    if update < warmup:
        return highest * (update + 1) / warmup
    if shape == "constant":
        return highest
    progress = min(1.0, (update - warmup) / max(1, updates - warmup))
    falling = 1.0 - progress if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return highest * (final_ratio + (1.0 - final_ratio) * falling)
