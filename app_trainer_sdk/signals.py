"""Owns which signals are wishes to stop: all that would end a process, but could be heard.

A terminal that closes says SIGHUP, a batch system that wants its machine back SIGUSR1 or SIGXCPU; an end that
is not told is one that is guessed. This file must not know what a wish does.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

WISHES = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU
)  # fmt: skip


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Inside, wishes wait until somebody listens: process 1 of a container would otherwise never get them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WISHES)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
