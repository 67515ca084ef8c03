"""A server on loopback that answers as a test tells it, and what those who speak to one are told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def free() -> None:
    """Nobody asked to stop."""


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 that nobody else is given meanwhile. Nobody listens there, unless told to."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that says so too may take it
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def reply(handler: BaseHTTPRequestHandler, status: int = 200, body: bytes = b"", **headers: str) -> None:
    """Answer with a status, headers (``Content_Type``) and a body."""
    handler.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(body)


@dataclass
class Received:
    """One request a server got."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Loopback(ThreadingHTTPServer):
    """A server on 127.0.0.1. ``answer(handler, request)`` says what each request is told."""

    daemon_threads = True
    request_queue_size = 128  # also while nobody accepts

    def __init__(self, answer: Callable[[BaseHTTPRequestHandler, Received], None]) -> None:
        self.received: list[Received] = []
        self.released = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                request = Received(self.command, self.path, dict(self.headers), self.rfile.read(length))
                outer.received.append(request)
                answer(self, request)

            do_POST = do_HEAD = do_GET  # noqa: N815 - the names http.server looks for

            def log_message(self, *arguments: Any) -> None:
                """Be silent."""

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is part of many tests."""
