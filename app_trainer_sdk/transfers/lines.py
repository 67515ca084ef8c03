"""Owns one connection: whom it really reaches, and that its greeting and an answer's head come to an end.

urllib3 counts silence: of a head that comes byte by byte none is ever late, and the end never comes. This file
must not know what is asked.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

Reached = Callable[[str, str], None]


def pools(patience: float, *, reached: Reached | None = None) -> dict[str, Any]:
    """Classes of connections for a manager of urllib3's, by scheme.

    Args:
        patience: seconds for TLS's and a proxy's greeting, and for an answer's head, from beginning to end.
        reached: called with a host and the address that a connection to it has, before anything is said there;
            what it raises ends the connection.
    """
    import urllib3

    class Line:
        """What both kinds of connection have in common."""

        host: str
        sock: socket.socket
        response_class = _whole_heads()

        def connect(self) -> None:
            with contextlib.ExitStack() as self._greeting:
                super().connect()  # type: ignore[misc]

        def _new_conn(self) -> Any:
            made: socket.socket = super()._new_conn()  # type: ignore[misc]
            try:
                if reached is not None:
                    reached(self.host, str(made.getpeername()[0]))
                self._greeting.enter_context(_closed_after(made, patience))
            except BaseException:
                made.close()
                raise
            return made

        def getresponse(self) -> Any:
            with _closed_after(self.sock, patience):
                return super().getresponse()  # type: ignore[misc]

    class PlainConnection(Line, urllib3.connection.HTTPConnection):
        pass

    class SecureConnection(Line, urllib3.connection.HTTPSConnection):
        pass

    class PlainPool(urllib3.HTTPConnectionPool):
        ConnectionCls = PlainConnection

    class SecurePool(urllib3.HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    return {"http": PlainPool, "https": SecurePool}


def _whole_heads() -> type:
    """Answers whose heads are whole, and that are answers: what is only said on the way to one is passed over.

    The standard library takes the end of a connection for the end of a head, and 103 for an answer, so that
    what follows would be taken for the answer to the next request (RFC 9110 section 15.2).
    """
    from http.client import SWITCHING_PROTOCOLS, HTTPResponse, IncompleteRead

    class WholeHead(HTTPResponse):
        def begin(self) -> None:
            while True:
                noted = _Lines(self.fp)
                self.fp = noted  # type: ignore[assignment]
                super().begin()
                self.fp = noted.file
                if not noted.last:
                    raise IncompleteRead(b"")
                if self.status >= 200 or self.status == SWITCHING_PROTOCOLS:
                    return
                self.headers = None  # type: ignore[assignment]  # or it would not begin again

    return WholeHead


class _Lines:
    """A file that remembers the last line that was read."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.last = b""

    def readline(self, limit: int = -1) -> bytes:
        self.last = self.file.readline(limit)
        return self.last

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@contextlib.contextmanager
def _closed_after(line: socket.socket, seconds: float) -> Iterator[None]:
    """:func:`ended_after` for a connection, by a second descriptor: TLS puts another object in its place."""
    with (
        socket.socket(fileno=os.dup(line.fileno())) as second,
        ended_after(lambda: second.shutdown(socket.SHUT_RDWR), seconds),
    ):
        yield


@contextlib.contextmanager
def ended_after(end: Callable[[], object], seconds: float) -> Iterator[None]:
    """End what is read from a connection inside when it takes longer: a time-out, whatever was read.

    Args:
        end: shuts it down, from another thread.
        seconds: how long it may take.
    """
    late = threading.Event()

    def cut() -> None:
        late.set()
        with contextlib.suppress(OSError, ValueError):  # it may be over already
            end()

    watch = threading.Timer(seconds, cut)
    watch.daemon = True
    try:
        with contextlib.suppress(RuntimeError):  # no more threads here: then unwatched
            watch.start()
        try:
            yield
        finally:
            if late.is_set():  # what was cut off may look as if it were whole
                raise TimeoutError(f"not whole after {seconds:g} s")
    finally:
        watch.cancel()
        with contextlib.suppress(RuntimeError):
            watch.join()
