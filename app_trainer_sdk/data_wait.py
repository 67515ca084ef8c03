"""Owns what is made of waiting for data: which part of it each step of the way took, and the sum over a run.

Arithmetic over plain numbers. This file must not know who measured them or where they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

#: On the way from a disk to the device. ``decode`` is all of ``item`` that the dataset does not call fetching;
#: ``handover`` is what no step of reading explains: starting workers, passing batches on.
PARTS = ("fetch", "decode", "collate", "handover", "transfer")


@dataclass(frozen=True)
class ReadTimes:
    """Seconds that reading took where it was done: in the training process or in a worker.

    Attributes:
        fetch: of ``item``, as far as the dataset says that it fetches.
        decode: the rest of ``item``.
        collate: of ``collate``.
    """

    fetch: float = 0.0
    decode: float = 0.0
    collate: float = 0.0

    @classmethod
    def total(cls, times: Iterable[Self]) -> Self:
        """All of them together."""
        each = list(times)
        return cls(sum(t.fetch for t in each), sum(t.decode for t in each), sum(t.collate for t in each))


def split_wait(seconds: float, times: ReadTimes) -> dict[str, float]:
    """A wait for data by part: workers read ahead, so it is shared out as their time was.

    No part gets more than it took; what is left then is ``handover``.
    """
    read = times.fetch + times.decode + times.collate
    share = min(seconds, read) / read if read > 0 else 0.0
    told = {name: getattr(times, name) * share for name in ("fetch", "decode", "collate")}
    return {**told, "handover": max(0.0, seconds - sum(told.values()))}


def data_wait(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Of lines of ``metrics.jsonl``: seconds in updates, waited for data, its share, and by part.

    ``most`` names the largest part; a trainer with a loop of its own need not tell parts. None without lines.
    """
    seconds = waited = 0.0
    parts = dict.fromkeys(PARTS, 0.0)
    there = told = False
    for line in lines:
        there = True
        seconds += line["seconds"]
        waited += line["data_seconds"]
        for name, value in (line.get("data_parts") or {}).items():
            parts[name] += value
            told = True
    if not there:
        return None
    waited += parts["transfer"]
    summary: dict[str, Any] = {
        "seconds": round(seconds, 6), "waited_seconds": round(waited, 6),
        "share": round(min(1.0, waited / seconds), 4) if seconds > 0 else 0.0,
    }  # fmt: skip
    if told:
        summary["parts"] = {name: round(value, 6) for name, value in parts.items()}
        summary["most"] = max(parts, key=parts.__getitem__) if waited > 0 else None
    return summary
