"""Owns the listener's HTTP: a table of routes over the standard library's server. It must not know what an
event means.

A further route is one function and one line: ``listener.route("PUT", r"/things/(.+)", function)``; it gets a
:class:`Request` and returns a :class:`Response`.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from app_trainer_sdk.callbacks.signature import verified
from app_trainer_sdk.describe import describe_document, render
from app_trainer_sdk.listener.desk import DROPPED, SILENT, Desk
from app_trainer_sdk.listener.outputs import Outputs
from app_trainer_sdk.registry import all_trainers

LARGEST_EVENT = 1 << 16
PIECE_BYTES = 1 << 20
JSON_TYPE = {"Content-Type": "application/json"}


@dataclass
class Request:
    """A request.

    Attributes:
        groups: what the route's parentheses matched, unquoted.
        length: bytes of the body.
        stream: the body, at most ``length`` bytes of it.
    """

    method: str
    path: str
    groups: tuple[str, ...]
    headers: Mapping[str, str]
    length: int
    stream: BufferedIOBase

    def body(self) -> bytes:
        """All of the body."""
        return self.stream.read(self.length)


@dataclass
class Response:
    """What is answered; with ``close`` the connection ends, and without a status nothing is said before."""

    status: int | None = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    close: bool = False

    @classmethod
    def json(cls, document: Any, status: int = 200) -> Self:
        """A document."""
        return cls(status, json.dumps(document).encode(), JSON_TYPE)


Handler = Callable[[Request], Response]


class Listener(ThreadingHTTPServer):
    """The server, in threads of its own while it is entered.

    Args:
        desk: what is known.
        address: host and port; port 0 takes a free one.
        token: asked of each event and upload, unless it is empty.
        keys: each event must be signed with one of them, unless there is none.
        outputs: grants uploads; None for no such thing.

    Attributes:
        largest_body: bytes of the largest body that a request had.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, desk: Desk, address: tuple[str, int] = ("127.0.0.1", 0), *, token: str = "",
        keys: Sequence[bytes] = (), outputs: Outputs | None = None,
    ) -> None:  # fmt: skip
        self.desk = desk
        self.outputs = outputs
        self.largest_body = 0
        self.token = token
        self.keys = keys
        self._open: set[socket.socket] = set()
        self._routes: list[tuple[str, re.Pattern[str], Handler]] = []
        self.route("POST", r"/events(?:/.*)?", self._take_event)
        self.route("GET", r"/api/training/models", self._show_models)
        self.route("GET", r"/api/training/jobs(?:/([^/]+))?", self._show_jobs)
        self.route("PUT", r"/uploads/(.+)", self._take_upload)
        self.route("GET", r"/uploads/(.+)", self._show_upload)
        if outputs is not None:
            self.route("POST", r"/grants(?:/.*)?", self._grant)
            self.route("GET", r"/api/training/jobs/([^/]+)/outputs", self._show_outputs)
            self.route("GET", r"/api/training/jobs/([^/]+)/resume", self._show_resume)
        super().__init__(address, _Handler)
        self.url = f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def route(self, method: str, pattern: str, handler: Handler) -> None:
        """Answer requests whose whole path matches; a later route goes before an earlier one."""
        self._routes.insert(0, (method, re.compile(pattern), handler))

    def answer(self, request: Request) -> Response:
        """The answer of the route that matches."""
        self.largest_body = max(self.largest_body, request.length)
        for method, pattern, handler in self._routes:
            match = pattern.fullmatch(request.path)
            if match and method in (request.method, {"HEAD": "GET"}.get(request.method)):
                request.groups = tuple(unquote(each or "") for each in match.groups())
                return handler(request)
        return Response.json({"error": f"no {request.method} {request.path} here"}, 404)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *ending: object) -> None:
        self.desk.close()
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

    def _allowed(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").encode()
        return not self.token or hmac.compare_digest(given, f"Bearer {self.token}".encode())

    def _unauthorized(self, request: Request, what: str) -> Response:
        """Refuse, and say so: whoever looks at the listener would else see nothing at all."""
        which = request.headers.get("webhook-id", "")
        self.desk.say(f"{request.method} {request.path} {which}".rstrip() + f" answered 401: {what}")
        return Response.json({"error": what}, 401)

    def _take_event(self, request: Request) -> Response:
        if request.length > LARGEST_EVENT:
            return Response.json({"error": f"more than {LARGEST_EVENT} bytes"}, 413)
        body, fault = request.body(), self.desk.next_fault()
        if fault.status is not None:
            if fault.status == SILENT:
                self.desk.released.wait()
            wrong = fault.status in (DROPPED, SILENT)
            self.desk.say(f"{request.headers.get('webhook-id', '?')} answered {fault.status or 'nothing'}")
            status = None if wrong else fault.status
            return Response(status, b"{}", {**JSON_TYPE, **(fault.headers or {})}, close=wrong)
        if not self._allowed(request) or not verified(self.keys, request.headers, body, now=time.time()):
            return self._unauthorized(request, "token or signature")
        decision = self.desk.hear(body)
        self.desk.released.wait(fault.delay)
        return Response.json(decision.answer, decision.status)

    def _show_models(self, request: Request) -> Response:
        return Response(200, render(describe_document(all_trainers().values())).encode(), JSON_TYPE)

    def _show_jobs(self, request: Request) -> Response:
        jobs = {name: record.document() for name, record in self.desk.jobs().items()}
        (name,) = request.groups
        if not name:
            return Response.json(jobs)
        return Response.json(jobs[name]) if name in jobs else Response.json({"error": "no such job"}, 404)

    def _take_upload(self, request: Request) -> Response:
        path = self._upload(request.groups[0])
        if path is None:
            return Response.json({"error": "a path that leads outside"}, 400)
        if not self._allowed(request):
            return self._unauthorized(request, "token")
        if not request.headers.get("content-length"):
            return Response.json({"error": "no Content-Length"}, 411)
        if not store(request, path):
            return Response(None, close=True)
        self.desk.say(f"upload {request.groups[0]}: {request.length:,} bytes")
        return Response.json({"bytes": request.length}, 201)

    def _show_upload(self, request: Request) -> Response:
        path = self._upload(request.groups[0])
        if path is None or not path.is_file():
            return Response.json({"error": "no such upload"}, 404)
        return Response(200, path.read_bytes(), {"Content-Type": "application/octet-stream"})

    def _grant(self, request: Request) -> Response:
        assert self.outputs is not None
        if request.length > LARGEST_EVENT:
            return Response.json({"error": f"more than {LARGEST_EVENT} bytes"}, 413)
        body = request.body()
        if not self._allowed(request):
            return self._unauthorized(request, "token")
        status, document = self.outputs.answer(body)
        return Response.json(document, status)

    def _show_outputs(self, request: Request) -> Response:
        assert self.outputs is not None
        return Response.json(self.outputs.verified(request.groups[0]) if self._allowed(request) else [])

    def _show_resume(self, request: Request) -> Response:
        assert self.outputs is not None
        found = self.outputs.resume(request.groups[0]) if self._allowed(request) else None
        return Response.json(found) if found else Response.json({"error": "no whole checkpoint"}, 404)

    def _upload(self, name: str) -> Path | None:
        """Where an upload lies; None for one that would lie outside."""
        base = self.desk.uploads.resolve()
        path = (base / name).resolve()
        return path if path.is_relative_to(base) and path != base and "\0" not in name else None


def store(request: Request, path: Path) -> bool:
    """Write a body to a file, whole or not at all; False when the sender went away in its middle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    left = request.length
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".part-", delete=False) as file:
        while left and (piece := request.stream.read(min(left, PIECE_BYTES))):
            file.write(piece)
            left -= len(piece)
    part = Path(file.name)
    part.unlink() if left else part.replace(path)
    return not left


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Listener

    def do_GET(self) -> None:
        """Hand any method to the routes."""
        length = self.headers.get("Content-Length", "0")
        size = int(length) if length.isdecimal() else 0
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, urlsplit(self.path).path, (), headers, size, self.rfile)
        response = self.server.answer(request)
        if response.close or (response.status or 0) >= 400:
            self.close_connection = True  # of a body that was not read nothing may be taken for a request
        if response.status is None:
            return
        self.send_response(response.status)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(response.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    do_POST = do_PUT = do_HEAD = do_DELETE = do_GET  # noqa: N815 - the names http.server looks for

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name
        """The desk says what there is to say."""
