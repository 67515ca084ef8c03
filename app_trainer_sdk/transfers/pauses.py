"""Owns time in transfers: the clock, pauses that end when somebody wants to stop, jitter and ``Retry-After``.

An argument everywhere, so that tests wait for nothing. It must not know what is being waited for.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Protocol, TypeVar, final

SHORTEST_SECONDS, LONGEST_SECONDS = 0.5, 30.0
LOOK_SECONDS = 0.1
T = TypeVar("T")


class Clock(Protocol):
    """Seconds that pass, and pauses."""

    def now(self) -> float:
        """Seconds, monotonic."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until ``event`` is set, at most ``seconds``; whether it is set."""
        ...


@final
class RealClock:
    """The machine's."""

    def now(self) -> float:
        """Seconds, monotonic."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until ``event`` is set, at most ``seconds``; whether it is set."""
        return event.wait(seconds)


def full_jitter(tries: int, chance: random.Random) -> float:
    """Seconds to wait before the next try: anything up to a bound that doubles, so that a crowd spreads."""
    return chance.uniform(0.0, min(LONGEST_SECONDS, SHORTEST_SECONDS * 2.0 ** min(tries, 16)))


def retry_after(value: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds that a ``Retry-After`` header asks for, a number or a date (RFC 9110 section 10.2.3)."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdecimal():
        return float(text[:12])
    from email.utils import parsedate_to_datetime  # 5 ms of a start, and hardly anybody answers with a date

    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())


def run_threads(
    threads: Sequence[threading.Thread], check: Callable[[], None], looked: Callable[[], None] = lambda: None
) -> None:
    """Start threads and wait for all of them; a wish to stop that ``check`` raises leaves them behind.

    Args:
        threads: not started yet.
        check: called before each short wait.
        looked: called after each.
    """
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            check()
            thread.join(LOOK_SECONDS)
            looked()


def patiently(ask: Callable[[], T], check: Callable[[], None]) -> T:
    """Call what may block for long, in a thread, so that a wish to stop is noticed all the same.

    A call that is left behind ends by itself; its answer is thrown away.
    """
    answer: list[T] = []
    failure: list[BaseException] = []
    ended = threading.Event()

    def run() -> None:
        try:
            answer.append(ask())
        except BaseException as error:  # noqa: BLE001 - raised below, where it is waited for
            failure.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="transfer-ask", daemon=True).start()
    while not ended.wait(LOOK_SECONDS):
        check()
    if failure:
        raise failure[0]
    return answer[0]
