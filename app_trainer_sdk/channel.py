"""Owns the line between supervisor and rank: JSON lines over a socket, and the stop token they carry.

Stop requests travel here and not as signals, so that a rank is never interrupted in the middle of a
library. This file must not import torch: both sides use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app_trainer_sdk.errors import ExitCode, StopReason, StopRequested

#: How often a rank says that somebody in it still looks for wishes to stop, while it says nothing else.
PULSE_SECONDS = 1.0


_elsewhere = False


@contextlib.contextmanager
def work_is_elsewhere() -> Iterator[None]:
    """Inside, looking for a wish to stop is no sign of life: another process works, and this one only waits."""
    global _elsewhere  # of the one thread that works
    before, _elsewhere = _elsewhere, True
    try:
        yield
    finally:
        _elsewhere = before


class StopToken:
    """One wish to stop, with its reason; noticed wherever :meth:`check` is called.

    Attributes:
        looks: how often somebody looked: where it does not grow, nothing moves.
    """

    def __init__(self) -> None:
        self._asked: StopRequested | None = None
        self._saving = False
        self.looks = 0

    def request(self, reason: StopReason, *, checkpoint: bool = True) -> None:
        """Ask to stop. The first reason stands; a later request may only take the checkpoint away."""
        before = self._asked or StopRequested(reason)
        self._asked = StopRequested(before.reason, checkpoint=before.checkpoint and checkpoint)

    def check(self) -> None:
        """Raise :class:`StopRequested` when somebody asked; cheap enough for every loop."""
        self.looks += not _elsewhere
        asked = self._asked
        if asked is not None and not (self._saving and asked.checkpoint):
            raise asked

    @property
    def asked(self) -> StopRequested | None:
        """The wish, if there is one."""
        self.looks += not _elsewhere
        return self._asked

    @property
    def wished(self) -> bool:
        """Whether there is a wish; asking is no sign of life."""
        return self._asked is not None

    def begin_saving(self) -> None:
        """From here on only a request that gives up the checkpoint interrupts."""
        self._saving = True


class RankChannel:
    """The rank's end: says facts without ever waiting, and listens for stop requests.

    Args:
        connection: the socket to the supervisor, or None when there is none (a trainer run in process).
        token: what a stop request sets.
        leave: called when the supervisor is gone.
        heard: called after each wish to stop, and about every second from then on, in another thread.
    """

    def __init__(
        self, connection: socket.socket | None, token: StopToken, *, leave: Callable[[], None] | None = None,
        heard: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        self._connection = connection
        self._token = token
        self._leave = leave or _leave
        self._heard = heard
        self._looks = 0
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closing = False
        if connection is not None:
            self._writer = threading.Thread(target=self._write, name="channel-writer", daemon=True)
            self._writer.start()
            threading.Thread(target=self._listen, name="channel-reader", daemon=True).start()

    def say(self, kind: str, **facts: Any) -> None:
        """Tell the supervisor something. Returns at once, and takes whatever a trainer says."""
        if self._connection is not None:
            self._queue.put(json.dumps({"kind": kind, **facts}, default=_said).encode() + b"\n")

    def close(self) -> None:
        """Send what waits, then close."""
        if self._connection is None:
            return
        self._closing = True
        self._queue.put(None)
        self._writer.join(timeout=5)
        with contextlib.suppress(OSError):  # the supervisor may be gone
            self._connection.shutdown(socket.SHUT_RDWR)  # a thread that reads would keep a closed one open
        self._connection.close()

    def _write(self) -> None:
        assert self._connection is not None
        while (line := self._queue.get()) is not None:
            try:
                self._connection.sendall(line)
            except OSError:
                return  # the reader sees the same end and acts on it

    def _listen(self) -> None:
        assert self._connection is not None
        for message in read_messages(self._connection, idle=self._pulse):
            if message.get("kind") == "stop":
                self._token.request(message["reason"], checkpoint=message["checkpoint"])
                if self._heard is not None:
                    self._heard()
        if not self._closing:
            self._leave()

    def _pulse(self) -> None:
        """Say that the rank moves, if it does (a thread of its own would always say so); repeat a wish."""
        if self._token.wished and self._heard is not None:
            self._heard()
        looks, self._looks = self._looks, self._token.looks
        if self._looks > looks and not self._closing:
            self.say("pulse")


def read_messages(
    connection: socket.socket, *, idle: Callable[[], None] | None = None
) -> Iterator[Mapping[str, Any]]:
    """Messages from a blocking socket until the other side closes it.

    Args:
        connection: the socket.
        idle: called about every ``PULSE_SECONDS`` while nothing comes.
    """
    pieces = b""
    while True:
        try:
            while idle is not None and not select.select([connection], [], [], PULSE_SECONDS)[0]:
                idle()
            piece = connection.recv(65536)
        except (OSError, ValueError):  # a closed socket has no number to select by
            return
        if not piece:
            return
        *lines, pieces = (pieces + piece).split(b"\n")
        for line in lines:
            yield json.loads(line)


def _said(value: Any) -> Any:
    """A trainer's own value as JSON: scalars of numpy and torch are numbers, anything else is its text."""
    return value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else str(value)


def _leave() -> None:
    """The supervisor is dead: nobody would hear of anything done from here on."""
    os._exit(ExitCode.PEER_FAILED)
