"""Owns the listener's HTTP: what is asked for where, and who may ask. It must not know what an event means."""

from __future__ import annotations

import hmac
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app_trainer_sdk.callbacks.signature import verified
from app_trainer_sdk.describe import describe_document, render
from app_trainer_sdk.listener.desk import DROPPED, SILENT, Desk
from app_trainer_sdk.listener.http import JSON_TYPE, Handler, Server, inside
from app_trainer_sdk.listener.outputs import Outputs
from app_trainer_sdk.registry import all_trainers

LARGEST_EVENT = 1 << 16


class Listener(Server):
    """The control plane's server.

    Args:
        desk: what is known.
        address: host and port; port 0 takes a free one.
        token: asked of each event and upload, unless it is empty.
        keys: each event must be signed with one of them, unless there is none.
        outputs: grants uploads; None for no such thing.

    Attributes:
        largest_body: bytes of the largest body that a request had.
    """

    def __init__(
        self, desk: Desk, address: tuple[str, int] = ("127.0.0.1", 0), *, token: str = "",
        keys: Sequence[bytes] = (), outputs: Outputs | None = None,
    ) -> None:  # fmt: skip
        self.desk = desk
        self.outputs = outputs
        self.largest_body = 0
        self.token = token
        self.keys = keys
        super().__init__(address, _Handler)

    def __exit__(self, *ending: object) -> None:
        self.desk.close()
        super().__exit__(*ending)


class _Refused(Exception):  # noqa: N818 - an answer, and nobody's error
    """A request that is answered with a status and why."""


class _Handler(Handler):
    server: Listener

    def answer(self) -> None:
        """Answer a request."""
        self.server.largest_body = max(self.server.largest_body, self.length)
        try:
            self._do("GET" if self.command == "HEAD" else self.command, self.server.outputs)
        except _Refused as refused:
            status, why = refused.args
            self.say_json({"error": why}, status)

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = answer  # noqa: N815 - the names http.server looks for

    def _do(self, method: str, outputs: Outputs | None) -> None:
        """Find out what is asked, by method and path."""
        jobs = self.server.desk.jobs()
        match [method, *map(unquote, urlsplit(self.path).path.split("/")[1:])]:
            case ["POST", "events", *_]:
                self._take_event()
            case ["POST", "grants", *_] if outputs is not None:
                body = self._small_body()
                self._check()
                status, document = outputs.answer(body)
                self.say_json(document, status)
            case ["PUT", "uploads", *names]:
                self._take_upload("/".join(names))
            case ["GET", "uploads", *names]:
                self._show_upload("/".join(names))
            case ["GET", "api", "training", "models"]:
                self.say(200, render(describe_document(all_trainers().values())).encode(), JSON_TYPE)
            case ["GET", "api", "training", "jobs"]:
                self.say_json({name: record.document() for name, record in jobs.items()})
            case ["GET", "api", "training", "jobs", name] if name in jobs:
                self.say_json(jobs[name].document())
            case ["GET", "api", "training", "jobs", name, "outputs"] if outputs is not None:
                self._check()
                self.say_json(outputs.verified(name))
            case ["GET", "api", "training", "jobs", name, "resume"] if outputs is not None:
                self._check()
                if (found := outputs.resume(name)) is None:
                    raise _Refused(404, "no whole checkpoint")
                self.say_json(found)
            case _:
                raise _Refused(404, f"no {self.command} {self.path} here")

    def _take_event(self) -> None:
        body, desk = self._small_body(), self.server.desk
        fault = desk.next_fault()
        if fault.status == SILENT:
            desk.released.wait()
        if fault.status is not None:
            desk.say(f"{self.headers.get('webhook-id', '?')} answered {fault.status or 'nothing'}")
        if fault.status in (DROPPED, SILENT):
            self.close_connection = True
        elif fault.status is not None:
            self.say_json({}, fault.status, fault.headers)
        else:
            headers = {name.lower(): value for name, value in self.headers.items()}
            signed = verified(self.server.keys, headers, body, now=time.time())
            self._check("token or signature", signed=signed)
            decision = desk.hear(body)
            desk.released.wait(fault.delay)
            self.say_json(decision.answer, decision.status)

    def _take_upload(self, name: str) -> None:
        self._check()
        path = self._upload(name)
        if "Content-Length" not in self.headers:
            raise _Refused(411, "no Content-Length")
        part, size, _ = self.keep_body(path.parent)
        if size < self.length:
            part.unlink()
            self.close_connection = True
            return
        part.replace(path)
        self.server.desk.say(f"upload {name}: {size:,} bytes")
        self.say_json({"bytes": size}, 201)

    def _show_upload(self, name: str) -> None:
        path = self._upload(name)
        if not path.is_file():
            raise _Refused(404, "no such upload")
        self.say(200, path.read_bytes(), {"Content-Type": "application/octet-stream"})

    def _upload(self, name: str) -> Path:
        try:
            return inside(self.server.desk.uploads, name)
        except ValueError as error:
            raise _Refused(400, str(error)) from None

    def _small_body(self) -> bytes:
        if self.length > LARGEST_EVENT:
            raise _Refused(413, f"more than {LARGEST_EVENT} bytes")
        return self.rfile.read(self.length)

    def _check(self, what: str = "token", *, signed: bool = True) -> None:
        """Refuse who may not ask, and say so: whoever looks at the listener would else see nothing at all."""
        given, token = self.headers.get("Authorization", ""), self.server.token
        if not signed or (token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode())):
            which = self.headers.get("webhook-id", "")
            self.server.desk.say(f"{self.command} {self.path} {which}".rstrip() + f" answered 401: {what}")
            raise _Refused(401, what)
