"""Owns where events go. A sink takes an event at once and never raises into whoever speaks.

The seam and its small ones: nothing, many, recording, JSON lines. The one that posts is in ``http_sink.py``,
the ones that are somebody else's run in a child (``trackers.py``). This file must not know what an event says.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TextIO, final

from app_trainer_sdk.events import Event
from app_trainer_sdk.standard_streams import standard_output


class Sink(Protocol):
    """Takes events."""

    def send(self, event: Event) -> None:
        """Take an event; returns at once."""
        ...

    def acknowledged(self) -> float:
        """Sequence number up to which progress was heard whole; infinite where nobody answers."""
        ...

    def close(self, seconds: float) -> bool:
        """Deliver what waits for at most ``seconds``; True when nothing is left."""
        ...

    def hurry(self, seconds: float) -> None:
        """Somebody does not want to wait: a ``close`` that is under way has at most so many seconds left.

        A signal handler may call it.
        """
        ...


class _AtOnce:
    """A sink that is done with an event when it has it, and that nobody answers."""

    def acknowledged(self) -> float:
        """Everything was heard that ever will be."""
        return math.inf

    def close(self, seconds: float) -> bool:
        """Nothing waits."""
        return True

    def hurry(self, seconds: float) -> None:
        """Nothing waits."""


@final
class NoSink(_AtOnce):
    """Nobody listens."""

    def send(self, event: Event) -> None:
        """Forget the event."""


@final
class ManySinks:
    """Several listeners."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def send(self, event: Event) -> None:
        """Hand the event to each."""
        for sink in self._sinks:
            sink.send(event)

    def acknowledged(self) -> float:
        """Where the slowest is."""
        return min((sink.acknowledged() for sink in self._sinks), default=math.inf)

    def close(self, seconds: float) -> bool:
        """Close all at once: one that is slow takes no time from the others."""
        with ThreadPoolExecutor(max(1, len(self._sinks))) as pool:
            return all(pool.map(lambda sink: sink.close(seconds), self._sinks))

    def hurry(self, seconds: float) -> None:
        """Hurry each."""
        for sink in self._sinks:
            sink.hurry(seconds)


@final
class RecordingSink(_AtOnce):
    """Keeps events, for tests."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def send(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)


@final
class LinesSink(_AtOnce):
    """Writes each event as a line of JSON.

    Args:
        stream: standard output by default.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or standard_output()

    def send(self, event: Event) -> None:
        """Write the line; a reader who went away is nothing to the run."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(event.body.decode() + "\n")
            self._stream.flush()
