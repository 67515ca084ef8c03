"""Owns the queue and the thread from which events are posted: order, patience, and what is given up when.

Lifecycle events go in order and wait for as long as it takes; progress has one place, the latest wins, and the
last is delivered. This file must not know what an answer means (``answers.py``) or how a run is stopped.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from app_trainer_sdk.callbacks.answers import Mode, Order, Verdict, judge
from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.callbacks.delivery import DeliveryRecord, Settled
from app_trainer_sdk.callbacks.post import Answer, Postman
from app_trainer_sdk.events import ENDING_TYPES, Event, lighter

LOG = logging.getLogger(__name__)

SHORTEST_RETRY, LONGEST_RETRY = 0.5, 30.0
#: Of the time to deliver the last word: tries follow each other shortly.
LAST_TRIES_SECONDS = 10.0
LONGEST_RETRY_AFTER = 3600.0
#: Waiting in memory; what comes on top waits on the disk.
MOST_WAITING = 500


def ignore_order(order: Order) -> None:
    """Nobody obeys."""


class HttpSink:
    """Posts events to one URL, from a thread of its own.

    Args:
        url: where to; it may carry a signature and is never logged.
        mode: whether anything in an answer is obeyed.
        instance: which process speaks; an answer to what an earlier one said fences nobody here.
        credentials: token, keys and certificates; those of the environment by default.
        record: remembers on disk what was heard.
        backlog: events of earlier starts that nobody heard; they go first.
        obey: called with an order, from the sender's thread.
        next_sequence: called with the least number the receiver wants next, from the sender's thread.
        pause: waits between tries; an argument so that tests need not wait.
    """

    def __init__(
        self, url: str, *, mode: Mode = "notify", instance: str = "", credentials: Credentials | None = None,
        record: DeliveryRecord | None = None, backlog: Sequence[Event] = (),
        obey: Callable[[Order], None] = ignore_order, next_sequence: Callable[[int], None] | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:  # fmt: skip
        self._mode: Mode = mode
        self._instance = instance
        self._credentials = credentials or Credentials()
        self._postman = Postman(url, self._credentials)
        self._record = record
        self._obey = obey
        self._next_sequence = next_sequence
        self._waiting: deque[Event] = deque(backlog)
        self._overflow: int | None = None  # attempt whose further events wait on the disk
        self._changed = threading.Condition()
        self._hurry = threading.Event()
        self._stopped = self._fenced = False
        self._interval, self._progress_at = 0.0, float("-inf")
        self._acknowledged, self._close_by = 0, math.inf
        self._unheard, self._trouble = 0, ""  # events left on the disk; what was logged last
        self._pause = pause or self._hurry.wait
        self._thread = threading.Thread(target=self._deliver, name="event-sender", daemon=True)
        self._thread.start()

    def send(self, event: Event) -> None:
        """Queue an event; of progress, which has one place, the latest takes the place of an unsent one."""
        with self._changed:
            if self._stopped or any(each.id == event.id for each in self._waiting):
                return
            if self._overflow is not None or (len(self._waiting) >= MOST_WAITING and self._record is not None):
                self._overflow = int(event.document["attempt"])
                return
            if event.replaceable or self._overtakes(event):
                self._waiting = deque(each for each in self._waiting if not each.replaceable)
            self._waiting.append(event)
            self._changed.notify_all()

    def acknowledged(self) -> float:
        """Sequence number of the last progress that was heard with its metrics."""
        return self._acknowledged

    def close(self, seconds: float) -> bool:
        """Deliver what waits for at most ``seconds``; a pause of our own between tries ends at once."""
        self._close_by = time.monotonic() + seconds
        self._hurry.set()
        with self._changed:
            self._changed.notify_all()
            while self._left() and self._thread.is_alive() and time.monotonic() < self._close_by:
                self._changed.wait(timeout=0.05)
            left = self._left() + self._unheard
            self._stopped = True
            self._changed.notify_all()
        return self._fenced or not left

    def hurry(self, seconds: float) -> None:
        """A ``close`` under way has at most so many seconds left."""
        self._close_by = min(self._close_by, time.monotonic() + seconds)

    def _left(self) -> int:
        return len(self._waiting) + (self._overflow is not None)

    def _overtakes(self, event: Event) -> bool:
        """Progress that is not due yet gives way: the next has its extremes. Before an ending it is said."""
        return event.type not in ENDING_TYPES and not self._due()

    def _due(self) -> bool:
        return self._hurry.is_set() or time.monotonic() >= self._progress_at + self._interval

    def _deliver(self) -> None:
        tries = 0
        lightened = None
        while (event := self._next()) is not None:
            self._credentials.refresh()
            sent = lighter(event) if event is lightened else event
            answer = self._postman.post(event.id, sent.body)
            verdict = judge(self._mode, event, answer)
            if verdict.what == "smaller" and event is not lightened and lighter(event).body != event.body:
                lightened, tries = event, 0
            elif verdict.what == "unknown" and self._credentials.refresh(now=True):
                tries = 0  # the token was changed meanwhile
            elif self._try_again(verdict, event):
                tries += 1
                self._log_once(answer, "event %s not delivered yet: %s", event.id)
                self._wait(min(LONGEST_RETRY, SHORTEST_RETRY * 2 ** min(tries, 10)), answer.retry_after)
            else:
                tries = 0
                self._settle(event, verdict, answer, whole=event is not lightened)
        self._postman.close()

    def _try_again(self, verdict: Verdict, event: Event) -> bool:
        """Whether an event needs another try: a terminal one is given up last of all.

        Credentials that a control plane does not accept may come yet. A mere webhook that knows no other keeps
        nobody waiting.
        """
        awaited = verdict.what == "unknown" and self._mode == "control"
        return verdict.what == "again" or awaited or (verdict.what == "smaller" and event.terminal)

    def _settle(self, event: Event, verdict: Verdict, answer: Answer, *, whole: bool) -> None:
        ours = not self._instance or event.document.get("instance") == self._instance
        if verdict.what == "heard":
            self._hear(event, verdict, ours=ours, whole=whole)
            self._done(event, "heard", answer)
        elif verdict.what == "fenced":
            self._done(event, "fenced", answer)
            self._fence(event, ours=ours)
        elif verdict.what == "stop":
            LOG.warning("no more events are sent: the receiver answered %s", answer)
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
        elif verdict.what == "unknown":
            self._log_once(answer, "event %s is kept for app-trainer events flush: %s", event.id)
            self._unheard += not event.replaceable
            self._drop(event)
        else:
            LOG.warning("event %s refused with %s; it stays in events.jsonl", event.id, answer)
            self._done(event, "refused", answer)
        if verdict.order is not None and (ours or verdict.order != "fenced"):
            self._obey(verdict.order)

    def _hear(self, event: Event, verdict: Verdict, *, ours: bool, whole: bool) -> None:
        if verdict.interval is not None:
            self._interval = verdict.interval
        if verdict.next_sequence is not None and self._next_sequence is not None and ours:
            self._next_sequence(verdict.next_sequence)
        if event.replaceable:
            self._progress_at = time.monotonic()
            if ours and whole:
                self._acknowledged = int(event.document["seq"])

    def _fence(self, event: Event, *, ours: bool) -> None:
        """Nothing more is said of a fenced attempt; an earlier start's being fenced is nothing to this one."""
        with self._changed:
            attempt, instance = (event.document.get(name) for name in ("attempt", "instance"))
            self._waiting = deque(
                each for each in self._waiting
                if (each.document.get("attempt"), each.document.get("instance")) != (attempt, instance)
            )  # fmt: skip
            if ours:
                self._fenced = self._stopped = True
            self._changed.notify_all()

    def _wait(self, longest: float, retry_after: float | None) -> None:
        """Wait before another try. Near the end of closing only shortly, so that the last word gets its
        chances, except where the receiver said for how long.
        """
        if retry_after is not None:
            with self._changed:
                seconds = min(LONGEST_RETRY_AFTER, retry_after)
                self._changed.wait_for(lambda: self._stopped, timeout=seconds)
        elif self._hurry.is_set():
            until = time.monotonic() + random.uniform(SHORTEST_RETRY, longest)  # noqa: S311 - jitter
            with self._changed:
                self._changed.wait_for(lambda: self._stopped, timeout=SHORTEST_RETRY)
                while not self._stopped and time.monotonic() < min(until, self._close_by - LAST_TRIES_SECONDS):
                    self._changed.wait(timeout=SHORTEST_RETRY)
        else:
            self._pause(random.uniform(SHORTEST_RETRY, longest))  # noqa: S311 - jitter, not a secret

    def _next(self) -> Event | None:
        with self._changed:
            while not self._stopped:
                if not self._waiting and self._overflow is not None and self._record is not None:
                    self._waiting = deque(self._record.waiting(self._overflow))
                    self._overflow = None
                alone = len(self._waiting) == 1  # progress with something behind it is due
                if self._waiting and not (alone and self._waiting[0].replaceable and not self._due()):
                    return self._waiting[0]
                left = self._progress_at + self._interval - time.monotonic() if self._waiting else None
                self._changed.wait(timeout=left)
            return None

    def _log_once(self, answer: Answer, text: str, identity: str) -> None:
        """The same trouble with every try, or every event, is one line."""
        if self._trouble != str(answer):
            LOG.warning(text, identity, answer)
            self._trouble = str(answer)

    def _done(self, event: Event, how: Settled, answer: Answer) -> None:
        self._trouble = ""
        if self._record is not None:
            self._record.settle(event, how, answer.status)
        self._drop(event)

    def _drop(self, event: Event) -> None:
        with self._changed:
            if self._waiting and self._waiting[0] is event:
                self._waiting.popleft()
            self._changed.notify_all()
