"""Owns the streams a program is born with: they are there, and a reader who does not read holds nothing up.

A full pipe or a terminal that somebody stopped lets a plain write wait for ever, and with it signals, events
and ranks. This file must not know what is said.
"""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import threading
from collections.abc import Callable
from typing import TextIO, cast

#: How long a reader is waited for; after that nothing is said until it reads again.
PATIENCE_SECONDS = 1.0
#: Whatever can be written to takes so much at once.
PIECE_BYTES = select.PIPE_BUF


def open_standard_streams() -> None:
    """Open those that were closed: the next file opened would get their number, and what libraries say.

    The only place for it is before anything else is opened.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8"))  # noqa: PTH123, SIM115


def standard_error(lost: Callable[[int], str] = lambda size: "") -> TextIO:
    """Standard error for whoever must not wait; ``lost`` tells of bytes that nobody took."""
    return patient(sys.stderr, lost)


def standard_output() -> TextIO:
    """Standard output for whoever must not wait."""
    return patient(sys.stdout)


def patient(stream: TextIO, lost: Callable[[int], str] = lambda size: "") -> TextIO:
    """A stream that waits for nobody; one without a descriptor, as tests have, is as it is."""
    try:
        stream.fileno()
    except (OSError, ValueError, AttributeError):
        return stream
    return cast("TextIO", _Patient(stream, lost))


_writing = threading.Lock()


class _Patient(io.TextIOBase):
    """Writes what is taken, and counts what is not."""

    def __init__(self, stream: TextIO, lost: Callable[[int], str]) -> None:
        self._stream = stream
        self._said_lost = lost
        self._lost = 0

    def write(self, text: str) -> int:
        """Write what is taken in time; a reader who went away is an ``OSError`` as always."""
        with _writing:
            if self._lost:
                if not self._ready(0.0):
                    self._lost += len(text)
                    return len(text)
                text = f"\n{self._said_lost(self._lost)}{text}"
                self._lost = 0
            self._write_bytes(text.encode(self._stream.encoding or "utf-8", "backslashreplace"))
        return len(text)

    def _write_bytes(self, data: bytes) -> None:
        while data:
            written = 0
            if self._ready(PATIENCE_SECONDS):
                with contextlib.suppress(BlockingIOError):  # somebody made it so for all who share it
                    written = os.write(self.fileno(), data[:PIECE_BYTES])
            if not written:
                self._lost = len(data)
                return
            data = data[written:]

    def _ready(self, seconds: float) -> bool:
        """Whether a piece is taken at once, or the reader has gone."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """Its descriptor."""
        return self._stream.fileno()
