"""Owns where events go. A sink takes an event at once and never raises into whoever speaks.

Three small ones and the real one: nothing, many, recording, HTTP. This file must not know what an event
says, and never runs on a training thread.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from app_trainer_sdk.events import Event

LOG = logging.getLogger(__name__)

CONNECT_SECONDS, READ_SECONDS = 5.0, 15.0
SHORTEST_RETRY, LONGEST_RETRY = 0.5, 30.0
RETRIED = frozenset({408, 425, 429, *range(500, 600)})


class Sink(Protocol):
    """Takes events."""

    def send(self, event: Event) -> None:
        """Take an event; returns at once."""
        ...

    def close(self, seconds: float) -> bool:
        """Deliver what waits for at most ``seconds``; True when nothing is left."""
        ...


class NoSink:
    """Nobody listens."""

    def send(self, event: Event) -> None:
        """Forget the event."""

    def close(self, seconds: float) -> bool:
        """Nothing waits."""
        return True


class ManySinks:
    """Several listeners."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    def send(self, event: Event) -> None:
        """Hand the event to each."""
        for sink in self._sinks:
            sink.send(event)

    def close(self, seconds: float) -> bool:
        """Close each; together they take at most ``seconds``."""
        deadline = time.monotonic() + seconds
        closed = [sink.close(max(0.0, deadline - time.monotonic())) for sink in self._sinks]
        return all(closed)


class RecordingSink:
    """Keeps events, for tests."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def send(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)

    def close(self, seconds: float) -> bool:
        """Nothing waits."""
        return True


class HttpSink:
    """Posts events to one URL in order, from a thread of its own.

    Lifecycle events are kept until they are answered; of progress only the latest waits. The URL may carry
    a signature and is never logged.

    Args:
        url: where to post.
        headers: further headers, such as a bearer token.
        pause: waits between tries; an argument so that tests need not wait.
    """

    def __init__(
        self, url: str, *, headers: dict[str, str] | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:  # fmt: skip
        self._url = url
        self._headers = headers or {}
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        self._stopped = False
        self._pause = pause or self._hurry.wait
        self._thread = threading.Thread(target=self._deliver, name="event-sender", daemon=True)
        self._thread.start()

    def send(self, event: Event) -> None:
        """Queue an event; of progress, which has one place, the latest takes the place of an unsent one."""
        with self._changed:
            if self._stopped:
                return
            if event.replaceable:
                self._waiting = deque(each for each in self._waiting if not each.replaceable)
            self._waiting.append(event)
            self._changed.notify()

    def close(self, seconds: float) -> bool:
        """Deliver what waits for at most ``seconds``; a pause between tries ends at once."""
        deadline = time.monotonic() + seconds
        self._hurry.set()
        with self._changed:
            while self._waiting and self._thread.is_alive() and time.monotonic() < deadline:
                self._changed.wait(timeout=0.05)
            left = len(self._waiting)
            self._stopped = True
            self._changed.notify_all()
        return left == 0

    def _deliver(self) -> None:
        import urllib3

        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        tries = 0
        with urllib3.PoolManager(timeout=timeout, retries=False) as pool:
            while (event := self._next()) is not None:
                if self._post(pool, event):
                    tries = 0
                    self._done(event)
                else:
                    tries += 1
                    self._wait(min(LONGEST_RETRY, SHORTEST_RETRY * 2**tries))

    def _wait(self, longest: float) -> None:
        """Wait before another try; while closing only shortly, so that the last word gets its chances."""
        if self._hurry.is_set():
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, timeout=SHORTEST_RETRY)
        else:
            self._pause(random.uniform(SHORTEST_RETRY, longest))  # noqa: S311 - jitter, not a secret

    def _next(self) -> Event | None:
        with self._changed:
            while not self._waiting and not self._stopped:
                self._changed.wait()
            return None if self._stopped else self._waiting[0]

    def _done(self, event: Event) -> None:
        with self._changed:
            if self._waiting and self._waiting[0] is event:
                self._waiting.popleft()
            self._changed.notify()

    def _post(self, pool: object, event: Event) -> bool:
        """True when the event needs no further try."""
        import urllib3

        assert isinstance(pool, urllib3.PoolManager)
        headers = {
            "Content-Type": "application/json", "Idempotency-Key": event.id, "webhook-id": event.id,
            **self._headers,
        }  # fmt: skip
        try:
            answer = pool.request("POST", self._url, body=event.body, headers=headers, redirect=False)
        except urllib3.exceptions.HTTPError as error:
            LOG.warning("event %s not delivered yet: %s", event.id, type(error).__name__)
            return False
        if answer.status in RETRIED:
            LOG.warning("event %s not delivered yet: status %d", event.id, answer.status)
            return False
        if answer.status >= 300:
            LOG.warning("event %s refused with status %d; it stays in events.jsonl", event.id, answer.status)
        return True
