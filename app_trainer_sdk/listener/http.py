"""Owns what the listener and its store share of HTTP: a server in threads, answers, and bodies kept as files.

It must not know what is asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import tempfile
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

PIECE_BYTES = 1 << 18
JSON_TYPE = {"Content-Type": "application/json"}


class Server(ThreadingHTTPServer):
    """A server in threads of its own while it is entered; ``url`` is where.

    Args:
        address: host and port; port 0 takes a free one.
        handler: answers requests.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[Handler]) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(address, handler)
        self.url = f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *ending: object) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self._open):  # a client that keeps one open must not go on talking to it
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A connection ends."""
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is nothing to tell."""


class Handler(BaseHTTPRequestHandler):
    """What every answer needs; methods named ``do_GET`` and so on are a subclass's."""

    protocol_version = "HTTP/1.1"

    @property
    def length(self) -> int:
        """Bytes of the request's body."""
        told = self.headers.get("Content-Length", "")
        return int(told) if told.isdecimal() else 0

    def say(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Answer; after a refusal the connection ends, since its body was perhaps not read."""
        self.close_connection = self.close_connection or status >= 400
        self.begin(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def say_json(self, document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Answer with a document."""
        self.say(status, json.dumps(document).encode(), {**JSON_TYPE, **(headers or {})})

    def begin(self, status: int, length: int, headers: Mapping[str, str] | None = None) -> None:
        """Send what stands before a body."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def keep_body(self, folder: Path) -> tuple[Path, int, bytes]:
        """Write the body to a new file in ``folder``, which the caller renames or removes.

        Returns:
            the file, its bytes (fewer than ``length`` where the sender went away) and its SHA-256.

        Raises:
            OSError: the connection broke, or the disk is full; nothing stays.
        """
        folder.mkdir(parents=True, exist_ok=True)
        digest, left = hashlib.sha256(), self.length
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".part-", delete=False) as file:
            try:
                while left and (piece := self.rfile.read(min(left, PIECE_BYTES))):
                    digest.update(piece)
                    file.write(piece)
                    left -= len(piece)
            except OSError:
                Path(file.name).unlink()
                raise
        return Path(file.name), self.length - left, digest.digest()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name
        """Who listens says what there is to say."""


def inside(base: Path, name: str) -> Path:
    """The path ``name`` below ``base``; a ``ValueError`` for one that would lie outside."""
    path = (base / name).resolve()
    if not path.is_relative_to(base.resolve()) or path == base.resolve():
        raise ValueError(f"{name!r} leads outside")
    return path
