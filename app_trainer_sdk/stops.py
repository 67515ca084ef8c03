"""Owns the wish to stop an attempt: who asked, how much of the grace is left, and what it was spent on.

Signals, orders of the control plane and the deadline all become one :class:`StopRequested`. They are heard in
the main thread, by signal handlers, so that one that waits for a silent server hears them too. This file must
not know ranks, events or what a stop does.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from app_trainer_sdk.callbacks.answers import Order
from app_trainer_sdk.errors import BadJob, StopReason, StopRequested
from app_trainer_sdk.paths import PREFIX, number_from_environment
from app_trainer_sdk.signals import WISHES

REASONS: Mapping[Order, StopReason] = {"cancel": "canceled", "gone": "canceled", "fenced": "fenced"}
SECOND_SIGNAL_SECONDS = 1.0
#: How often the deadline and orders are looked at, whatever the main thread does.
TICK_SECONDS = 0.5
GRACE_SECONDS = 30.0
#: Kept of the grace for the last words after the last try to deliver them.
LAST_SECONDS = 1.0
#: Of the grace: what uploads may take, and what is kept for telling the end after them.
UPLOAD_SHARE, TELL_SHARE = 0.3, 0.1


class Stops:
    """Wishes to stop one attempt. The first one stands; a second signal only gives up the checkpoint. That a
    newer attempt runs goes before all else.

    Args:
        heard: called in the main thread with each new wish.
        tick: called in the main thread about every ``TICK_SECONDS``, whatever it waits for.
        clock: seconds, monotonic.

    Attributes:
        asked: the wish, None while nobody asked.

    Raises:
        BadJob: the environment's deadline is none.
    """

    def __init__(
        self, heard: Callable[[StopRequested], None], tick: Callable[[], None] = lambda: None, *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._heard = heard
        self._tick = tick
        self._clock = clock
        self._orders: queue.SimpleQueue[Order] = queue.SimpleQueue()
        self._deadline = clock() + seconds_to_deadline()
        self._raises = False
        self._asked_at = 0.0
        self._upload_from: float | None = None
        self._spent: dict[str, float] = {"checkpoint": 0.0, "upload": 0.0, "terminal": 0.0, "kill": 0.0}
        self.grace = number_from_environment("GRACE_SECONDS", GRACE_SECONDS)
        self.asked: StopRequested | None = None

    def order(self, order: Order) -> None:
        """Take an order of the control plane, from any thread; it is obeyed within ``TICK_SECONDS``."""
        self._orders.put(order)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, signals are wishes to stop, and the clock is looked at. In the main thread only."""
        ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()  # nohup
        previous = {number: signal.signal(number, self._on_signal) for number in {*WISHES} - ignored}
        previous[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_tick)
        signal.setitimer(signal.ITIMER_REAL, TICK_SECONDS, TICK_SECONDS)
        # They were held back while the program was loaded: process 1 of a container would not get them at all.
        held_back = signal.pthread_sigmask(signal.SIG_UNBLOCK, WISHES)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            for number, handler in previous.items():
                # Where they were held back the process is the job's own, and about to end: a signal that comes
                # after the end was told must not change its code.
                signal.signal(number, signal.SIG_IGN if number in held_back else handler)

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, a wish is raised at once, wherever the main thread is."""
        self._raises = True
        try:
            self.check()
            yield
        finally:
            self._raises = False

    def check(self) -> None:
        """Raise the wish, if there is one."""
        if self.asked is not None:
            raise self.asked

    @property
    def overdue(self) -> bool:
        """Whether what is left of the grace is needed to kill and to tell the end."""
        return self.asked is not None and self._waited() > self.grace - max(2.0, self.grace * 0.05)

    def seconds_to_tell(self, wanted: float) -> float:
        """How long to wait for the control plane: ``wanted``, but no longer than the grace allows."""
        if self.asked is None:
            return wanted
        return max(0.0, min(wanted, self.grace - self._waited() - LAST_SECONDS))

    def seconds_to_upload(self) -> float:
        """What uploads still have of the grace: infinite without a wish, 0 where nothing may be handed over."""
        if self.asked is None:
            return math.inf
        if self.asked.reason in ("canceled", "fenced") or not self.asked.checkpoint:
            return 0.0
        if self._upload_from is None:
            self._upload_from = self._waited()
        last = self.grace - max(2.0, self.grace * 0.05) - self.grace * TELL_SHARE
        return max(0.0, min(self._upload_from + self.grace * UPLOAD_SHARE, last) - self._waited())

    @contextlib.contextmanager
    def spending(self, purpose: str) -> Iterator[None]:
        """Book the time inside, as far as it is of the grace."""
        before = self._waited()
        try:
            yield
        finally:
            if self.asked is not None:
                self._spent[purpose] += self._waited() - before

    def document(self) -> dict[str, Any] | None:
        """Who asked, and what the grace was spent on; None when nobody asked."""
        if self.asked is None:
            return None
        spent = {purpose: round(seconds, 3) for purpose, seconds in self._spent.items()}
        share = {purpose: round(seconds / self.grace, 4) for purpose, seconds in spent.items() if self.grace}
        return {
            "reason": self.asked.reason, "checkpoint": self.asked.checkpoint, "grace_seconds": self.grace,
            "seconds": spent, "share_of_grace": share,
        }  # fmt: skip

    def _waited(self) -> float:
        """Seconds since the wish; 0 before there was one, so that what was spent before does not count."""
        return self._clock() - self._asked_at if self.asked is not None else 0.0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self._ask(StopRequested("interrupted"))
        elif self._waited() >= SECOND_SIGNAL_SECONDS:
            self._ask(StopRequested("interrupted", checkpoint=False))

    def _on_tick(self, number: int, frame: FrameType | None) -> None:
        self._tick()
        self.look()

    def look(self) -> None:
        """Obey what the control plane asked meanwhile, and the deadline."""
        with contextlib.suppress(queue.Empty):
            while True:
                order = self._orders.get_nowait()
                # Who is fenced must leave nothing behind that a newer attempt could meet.
                self._ask(StopRequested(REASONS[order], checkpoint=order != "fenced"))
        if self._clock() >= self._deadline:
            self._ask(StopRequested("deadline"))

    def _ask(self, wish: StopRequested) -> None:
        """The first reason stands, but for a newer attempt's; a later wish may take the checkpoint away."""
        if self.asked is None:
            self._asked_at = self._clock()
            self.asked = wish
        elif wish.reason == "fenced" != self.asked.reason:
            self.asked = wish
        elif self.asked.checkpoint and not wish.checkpoint:
            self.asked = StopRequested(self.asked.reason, checkpoint=False)
        else:
            return
        self._heard(self.asked)
        if self._raises:
            raise self.asked


def seconds_to_deadline() -> float:
    """Seconds until the environment's deadline, infinite without one.

    A moment is turned into a distance once: a clock that jumps afterwards moves no deadline.

    Raises:
        BadJob: what stands there is no deadline.
    """
    found = [math.inf]
    if seconds := os.environ.get(PREFIX + "MAX_RUNTIME_SECONDS"):
        found.append(_positive(seconds))
    if moment := os.environ.get(PREFIX + "DEADLINE"):
        found.append(_moment(moment) - time.time())
    return min(found)


def _positive(text: str) -> float:
    with contextlib.suppress(ValueError):
        if (number := float(text)) > 0:
            return number
    raise BadJob(
        f"{PREFIX}MAX_RUNTIME_SECONDS is {text!r}", expected="a number above 0",
        setting=PREFIX + "MAX_RUNTIME_SECONDS",
    )  # fmt: skip


def _moment(text: str) -> float:
    """Unix seconds, or a time as ISO 8601 writes it; without a zone it is UTC."""
    with contextlib.suppress(ValueError):
        if math.isfinite(number := float(text)):
            return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise BadJob(
            f"{PREFIX}DEADLINE is {text!r}", expected="unix seconds, or a time such as 2026-11-30T10:00:00Z",
            setting=PREFIX + "DEADLINE",
        ) from None  # fmt: skip
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
