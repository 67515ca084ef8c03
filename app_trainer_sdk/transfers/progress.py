"""Owns how far transfers are: bytes by mirror, rate, time left, and the row that the control plane gets.

It must not know who transfers, nor where the words go.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, final
from urllib.parse import urlsplit

from app_trainer_sdk.quantities import seconds_text, size_text

#: The rate that is shown is that of the last seconds.
WINDOW_SECONDS = 10.0


class ProgressListener(Protocol):
    """Who is told of transfers."""

    def transferring(self, text: str, done: int, total: int) -> None:
        """How far it is, for people; often."""
        ...

    def transferred(self, row: dict[str, Any]) -> None:
        """What was done, for the control plane; once."""
        ...


@final
class NoListener:
    """Is told nothing."""

    def transferring(self, text: str, done: int, total: int) -> None:
        """Forget it."""

    def transferred(self, row: dict[str, Any]) -> None:
        """Forget it."""


NO_LISTENER = NoListener()


@final
class Meter:
    """Counts the bytes of one group of files. Used by several threads.

    Args:
        label: what is transferred.
        total: bytes of all of it, 0 where unknown.
        told: hears of it.
        now: seconds, monotonic.
    """

    def __init__(self, label: str, *, total: int, told: ProgressListener, now: Callable[[], float]) -> None:
        self._label = label
        self._total = total
        self._told = told
        self._now = now
        self._began = now()
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._told_whole = False
        self._by_host: dict[str, int] = {}
        self._hosts: dict[str, str] = {}
        self._reused = 0
        self._notes: dict[str, int] = {}
        self._mirror = ""
        self._points: deque[tuple[float, int]] = deque([(self._began, 0)])

    def reused(self, size: int) -> None:
        """Bytes that were there already."""
        with self._lock:
            self._reused += size

    def add(self, size: int, url: str) -> None:
        """Bytes that came (or went) just now."""
        with self._lock:
            host = self._hosts.get(url) or self._hosts.setdefault(url, urlsplit(url).hostname or "file")
            self._by_host[host] = self._by_host.get(host, 0) + size
            self._mirror = host

    def note(self, word: str) -> None:
        """Count something that happened, such as a restart."""
        with self._lock:
            self._notes[word] = self._notes.get(word, 0) + 1

    def show(self, why: str = "") -> None:
        """Tell people how far it is, and why it does not move; the end once."""
        text, done = self._text()
        text = f"{text}  {why}" if why else text
        whole = 0 < self._total <= done
        with self._telling:
            if not (whole and self._told_whole):
                self._told.transferring(text, done, self._total)
            self._told_whole = whole

    def finish(self, files: int) -> None:
        """Tell the control plane what was done."""
        seconds = self._now() - self._began
        with self._lock:
            moved = sum(self._by_host.values())
            row = {
                "phase": self._label, "seconds": round(seconds, 3), "files": files, "bytes": moved,
                "reused_bytes": self._reused, "bytes_per_second": round(moved / seconds) if seconds > 0 else 0,
                "mirrors": dict(self._by_host), **self._notes,
            }  # fmt: skip
        self._told.transferred(row)

    def _text(self) -> tuple[str, int]:
        with self._lock:
            now, moved = self._now(), sum(self._by_host.values())
            self._points.append((now, moved))
            while len(self._points) > 2 and now - self._points[0][0] > WINDOW_SECONDS:
                self._points.popleft()
            began, before = self._points[0]
            rate = (moved - before) / (now - began) if now > began else 0.0
            done = self._reused + moved
        words = [f"{self._label}: {size_text(done)}" + (f" of {size_text(self._total)}" if self._total else "")]
        if rate > 0:
            words.append(f"{size_text(rate)}/s")
            if self._total > done:
                words.append(f"{seconds_text((self._total - done) / rate)} left")
        return "  ".join([*words, *([f"from {self._mirror}"] if self._mirror else [])]), done
