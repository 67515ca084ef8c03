"""Owns what a number did between two reports: last, mean, least and most, so that throttling loses no extreme.

Pure values, strict JSON. It must not know which numbers there are or where they go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: ``{"last", "mean", "min", "max", "n"}``; ``n`` counts finite values, of which mean, min and max are.
Spread = Mapping[str, Any]
Spreads = dict[str, Spread]
#: Parts kept apart until the receiver answers; more are only seen when it is away for long.
MOST_PARTS = 8


def spread_of(values: Sequence[float | None]) -> Spread:
    """The spread of one value or more, in order; None stands for one that was not finite."""
    finite = [each for each in values if each is not None and math.isfinite(each)]
    last = values[-1] if values[-1] is not None and math.isfinite(values[-1]) else None
    if not finite:
        return {"last": None, "mean": None, "min": None, "max": None, "n": 0}
    mean = math.fsum(finite) / len(finite)
    return {"last": last, "mean": mean, "min": min(finite), "max": max(finite), "n": len(finite)}


def joined(earlier: Spread, later: Spread) -> Spread:
    """The spread of two stretches, one after the other."""
    if not earlier["n"] or not later["n"]:
        return {**(earlier if earlier["n"] else later), "last": later["last"]}
    count = earlier["n"] + later["n"]
    mean = earlier["mean"] + (later["mean"] - earlier["mean"]) * (later["n"] / count)
    return {
        "last": later["last"], "mean": mean, "min": min(earlier["min"], later["min"]),
        "max": max(earlier["max"], later["max"]), "n": count,
    }  # fmt: skip


def join_all(parts: Iterable[Mapping[str, Spread]]) -> Spreads:
    """Spreads by name over several stretches in order."""
    total: Spreads = {}
    for part in parts:
        for name, spread in part.items():
            total[name] = joined(total[name], spread) if name in total else spread
    return total


class Unheard:
    """Spreads since the last progress that the receiver acknowledged.

    Each event tells everything that no acknowledged one told: one that was replaced on the way costs nothing.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[float, Spreads, frozenset[str]]] = []
        self._open: tuple[Spreads, frozenset[str]] = ({}, frozenset())

    def add(self, spreads: Mapping[str, Spread], nonfinite: Iterable[str] = ()) -> None:
        """Take what happened since the last call."""
        before, names = self._open
        self._open = (join_all([before, spreads]), names | frozenset(nonfinite))

    def told(self, sequence: int) -> None:
        """Everything up to here is in the event of this number."""
        self._parts.append((sequence, *self._open))
        self._open = ({}, frozenset())
        if len(self._parts) > MOST_PARTS:
            (_, first, names), (number, second, others) = self._parts[-2:]
            self._parts[-2:] = [(number, join_all([first, second]), names | others)]

    def heard(self, sequence: float) -> None:
        """Forget what the event of this number told, and those before it."""
        self._parts = [part for part in self._parts if part[0] > sequence]

    def total(self) -> tuple[Spreads, list[str]]:
        """Spreads and the names that were not finite, of everything unheard."""
        spreads = join_all([*(part for _, part, _ in self._parts), self._open[0]])
        return spreads, sorted(frozenset().union(*(names for _, _, names in self._parts), self._open[1]))
