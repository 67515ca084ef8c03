"""Owns where the wall time of a start goes: every second belongs to exactly one activity, so that they add up.

Torch-free; the supervisor and a rank each have a stopwatch. What a rank waits for on the host counts where it
waits: kernels that were launched before are paid for where their result is first needed. This file must not
know what the activities do.
"""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

#: In the order of a run. ``start`` is loading programs and planning, ``idle`` what belongs to nothing else.
ACTIVITIES = (
    "start", "download", "prepare", "load", "compile", "data_wait", "compute", "communication", "evaluation",
    "checkpoint", "export", "replay", "upload", "idle",
)  # fmt: skip


class Stopwatch:
    """Counts seconds, always for one activity: inside :meth:`on` for that one, elsewhere for ``idle``.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._since = clock()
        self._now = "idle"
        self._seconds: dict[str, float] = {}

    def on(self, activity: str) -> contextlib.AbstractContextManager[None]:
        """Count for ``activity`` inside; the one around it goes on afterwards."""
        return _Inside(self, activity)

    def seconds(self) -> dict[str, float]:
        """By activity, until now."""
        self.switch(self._now)
        return dict(self._seconds)

    def switch(self, activity: str) -> str:
        """Count for ``activity`` from now on; what it was before."""
        now = self._clock()
        self._seconds[self._now] = self._seconds.get(self._now, 0.0) + now - self._since
        before, self._now, self._since = self._now, activity, now
        return before


_NOTHING = contextlib.nullcontext()


class _Inside:
    """A class of its own: a generator would take longer than many a wait, and there is one each update."""

    __slots__ = ("_activity", "_watch")

    def __init__(self, watch: Stopwatch, activity: str) -> None:
        self._watch = watch
        self._activity = activity

    def __enter__(self) -> None:
        self._activity = self._watch.switch(self._activity)

    def __exit__(self, *error: object) -> None:
        self._watch.switch(self._activity)


_watch: contextvars.ContextVar[Stopwatch | None] = contextvars.ContextVar("stopwatch", default=None)


@contextlib.contextmanager
def counting(watch: Stopwatch) -> Iterator[None]:
    """Inside, :func:`timed` counts with ``watch``; in this thread alone, since others work beside it."""
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def timed(activity: str) -> contextlib.AbstractContextManager[None]:
    """Inside, the time of this process belongs to ``activity``; without a stopwatch nothing is counted."""
    watch = _watch.get()
    return _NOTHING if watch is None else watch.on(activity)


def time_split(own: Mapping[str, float], ranks_seconds: float, rank: Mapping[str, float]) -> dict[str, Any]:
    """The wall time of a start by activity.

    Args:
        own: of the supervisor, without the time while ranks were there.
        ranks_seconds: how long ranks were there.
        rank: of rank 0, from when it had loaded its program; empty where it left nothing.

    Returns:
        ``wall_seconds`` and ``seconds`` by activity, which add up to it.
    """
    seconds = dict.fromkeys(ACTIVITIES, 0.0)
    for name, value in (*own.items(), *rank.items()):
        seconds[name] += value
    seconds["start" if rank else "idle"] += ranks_seconds - sum(rank.values())
    rounded = {name: round(value, 3) for name, value in seconds.items()}
    return {"wall_seconds": round(sum(own.values()) + ranks_seconds, 3), "seconds": rounded}
