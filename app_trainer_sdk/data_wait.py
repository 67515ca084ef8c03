"""Owns what is made of waiting for data: which part of it each step of the way took, and the sum over a run.

Arithmetic over plain numbers. This file must not know who measured them or where they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

#: On the way from a disk to the device. ``decode`` is all of ``item`` that the dataset does not call fetching;
#: ``handover`` is what no step of reading explains: starting workers, passing batches on.
PARTS = ("fetch", "decode", "collate", "handover", "transfer")
#: Waits below this are not told apart: it would take longer than they are worth.
LEAST_WAIT_SECONDS = 0.0005


class ReadTimes(NamedTuple):
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
    def total(cls, times: Sequence[Self]) -> Self:
        """All of them together."""
        return times[0] if len(times) == 1 else cls(*(sum(each) for each in zip(*times, strict=True)))


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

    ``most`` names the largest part, ``untold`` are waits that no line tells apart: they were short, or the
    trainer has a loop of its own. None without lines.
    """
    seconds = waited = 0.0
    parts = dict.fromkeys(PARTS, 0.0)
    there = False
    for line in lines:
        there = True
        seconds += line["seconds"]
        waited += line["data_seconds"]
        for name, value in (line.get("data_parts") or {}).items():
            parts[name] += value
    if not there:
        return None
    waited += parts["transfer"]
    parts["untold"] = max(0.0, waited - sum(parts.values()))
    return {
        "seconds": round(seconds, 6), "waited_seconds": round(waited, 6),
        "share": round(min(1.0, waited / seconds), 4) if seconds > 0 else 0.0,
        "parts": {name: round(value, 6) for name, value in parts.items()},
        "most": max(parts, key=parts.__getitem__) if waited > 0 else None,
    }  # fmt: skip
