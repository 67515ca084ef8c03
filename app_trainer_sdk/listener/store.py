"""Owns a small object store with presigned URLs that really expire: a server of its own, beside the listener.

The bytes of uploads and downloads come here and never to the listener's API. A URL is good for one method, one
place, one length and one SHA-256, until its time is over, which is looked at when a request begins and again
when its body has come. Objects are files; a part or an object is whole or not there. Not for the open internet.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from app_trainer_sdk.files import remove_tree
from app_trainer_sdk.listener.desk import DROPPED, SILENT, Fault
from app_trainer_sdk.transfers.grants import Target

PIECE_BYTES = 1 << 18
CHECKSUM = "x-amz-checksum-sha256"


class Store(ThreadingHTTPServer):
    """The store, in threads of its own while it is entered.

    Args:
        folder: where objects and parts lie.
        address: host and port; port 0 takes a free one.
        quota: bytes that it takes; 0 for as many as the disk.
        now: Unix time.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, folder: Path, address: tuple[str, int] = ("127.0.0.1", 0), *, quota: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.objects, self.parts = folder / "objects", folder / "parts"
        self.objects.mkdir(parents=True, exist_ok=True)
        self.parts.mkdir(parents=True, exist_ok=True)
        self.quota = quota
        self.now = now
        self.faults: deque[Fault] = deque()
        self.released = threading.Event()
        self.requests: list[tuple[str, str, int, int]] = []  # method, path, status, bytes of the body that came
        self._key = _kept_key(folder / "key")
        super().__init__(address, _Handler)
        self.url = f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def put_target(self, path: str, *, seconds: float, size: int, sha256: str) -> Target:
        """A URL that takes exactly these bytes, at ``objects/KEY`` or ``parts/UPLOAD/NUMBER``."""
        checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
        query = self._signed("PUT", path, seconds, str(size), checksum)
        return Target(f"{self.url}/{quote(path)}?{query}", {CHECKSUM: checksum}, seconds)

    def get_url(self, key: str, *, seconds: float) -> str:
        """A URL that gives an object."""
        return f"{self.url}/{quote('objects/' + key)}?{self._signed('GET', 'objects/' + key, seconds)}"

    def stored_parts(self, upload: str) -> dict[int, tuple[int, str]]:
        """Parts of an upload that are there: size and SHA-256 by number."""
        found = {}
        for path in (self.parts / upload).glob("*-*"):
            number, _, digest = path.name.partition("-")
            found[int(number)] = (path.stat().st_size, digest)
        return found

    def compose(self, upload: str, key: str) -> None:
        """Make an object of the parts of an upload, in order."""
        parts = sorted((self.parts / upload).glob("*-*"), key=lambda each: int(each.name.partition("-")[0]))
        place = self.place(key)
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".part-", delete=False) as whole:
            for path in parts:
                with path.open("rb") as file:
                    while piece := file.read(PIECE_BYTES):
                        whole.write(piece)
        Path(whole.name).replace(place)
        remove_tree(self.parts / upload)

    def place(self, key: str) -> Path:
        """Where an object lies; a ``ValueError`` for a name that would lie outside."""
        return _inside(self.objects, key)

    def allows(self, method: str, path: str, query: dict[str, str], length: str, checksum: str) -> str:
        """Why a request is refused, empty when it is not."""
        expires = query.get("expires", "")
        words = (method, path, expires, length, checksum) if method == "PUT" else (method, path, expires)
        if not hmac.compare_digest(self._signature(*words), query.get("signature", "")):
            return "SignatureDoesNotMatch"
        return "ExpiredRequest" if self.now() >= float(expires) else ""

    def has_room(self, size: int) -> bool:
        """Whether so many bytes more fit."""
        if not self.quota:
            return True
        held = sum(each.stat().st_size for top in (self.objects, self.parts) for each in _files(top))
        return held + size <= self.quota

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *ending: object) -> None:
        self.released.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is nothing to tell."""

    def _signed(self, method: str, path: str, seconds: float, *words: str) -> str:
        expires = f"{self.now() + seconds:.3f}"
        return urlencode({"expires": expires, "signature": self._signature(method, path, expires, *words)})

    def _signature(self, *words: str) -> str:
        return hmac.new(self._key, "\n".join(words).encode(), hashlib.sha256).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Store

    def do_PUT(self) -> None:
        store, parts = self.server, urlsplit(self.path)
        path, query = unquote(parts.path).lstrip("/"), dict(parse_qsl(parts.query))
        length, checksum = self.headers.get("Content-Length", ""), self.headers.get(CHECKSUM, "")
        if self._misbehaves():
            return
        if why := store.allows("PUT", path, query, length, checksum):
            self._refuse(403, why, path)
        elif not store.has_room(int(length)):
            self._refuse(507, "InsufficientStorage", path)
        else:
            self._take(path, int(length), checksum, float(query["expires"]))

    def do_GET(self) -> None:
        store, parts = self.server, urlsplit(self.path)
        path, query = unquote(parts.path).lstrip("/"), dict(parse_qsl(parts.query))
        if self._misbehaves():
            return
        if why := store.allows("GET", path, query, "", ""):
            self._refuse(403, why, path)
            return
        place = store.place(path.removeprefix("objects/"))
        if not place.is_file():
            self._refuse(404, "NoSuchKey", path)
            return
        size = place.stat().st_size
        asked = self.headers.get("Range", "")
        start, end = _range(asked, size) if asked else (0, size)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("ETag", f'"{place.stat().st_mtime_ns}-{size}"')
        self._end_headers(end - start)
        with place.open("rb") as file:
            file.seek(start)
            while start < end and (piece := file.read(min(PIECE_BYTES, end - start))):
                self.wfile.write(piece)
                start += len(piece)
        store.requests.append(("GET", path, 206 if asked else 200, 0))

    def _take(self, path: str, length: int, checksum: str, expires: float) -> None:
        store, digest, left = self.server, hashlib.sha256(), length
        folder, name = _inside(store.objects.parent, path).parent, path.rpartition("/")[2]
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".part-", delete=False) as file:
            beside = Path(file.name)
            while left and (piece := self.rfile.read(min(left, PIECE_BYTES))):
                digest.update(piece)
                file.write(piece)
                left -= len(piece)
        came = base64.b64encode(digest.digest()).decode()
        late = store.now() >= expires
        if left or late or came != checksum:
            beside.unlink()
            store.requests.append(("PUT", path, 0 if left else 403 if late else 400, length - left))
            if not left:
                self._answer(403 if late else 400, "ExpiredRequest" if late else "BadDigest")
            self.close_connection = True
            return
        final = f"{name}-{digest.hexdigest()}" if path.startswith("parts/") else name
        beside.replace(folder / final)
        store.requests.append(("PUT", path, 200, length))
        self._answer(200, "")

    def _misbehaves(self) -> bool:
        """Do what was lined up instead of an answer, if anything was."""
        store = self.server
        fault = store.faults.popleft() if store.faults else Fault()
        if fault.delay:
            store.released.wait(fault.delay)
        if fault.status == SILENT:
            store.released.wait()
        elif fault.status not in (None, DROPPED):
            self._answer(fault.status or 500, "Told")
        self.close_connection = self.close_connection or fault.status is not None
        return fault.status is not None

    def _refuse(self, status: int, why: str, path: str) -> None:
        self.server.requests.append((self.command, path, status, 0))
        self.close_connection = True  # the body was not read
        self._answer(status, why)

    def _answer(self, status: int, why: str) -> None:
        body = f"<Error><Code>{why}</Code></Error>".encode() if why else b""
        self.send_response(status)
        self._end_headers(len(body))
        self.wfile.write(body)

    def _end_headers(self, length: int) -> None:
        self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name
        """Nothing to say."""


def _kept_key(path: Path) -> bytes:
    """The signing key; URLs stay good over a restart."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(secrets.token_bytes(32))
    return path.read_bytes()


def _inside(base: Path, name: str) -> Path:
    path = (base / name).resolve()
    if not path.is_relative_to(base.resolve()) or path == base.resolve():
        raise ValueError(f"{name!r} leads outside")
    return path


def _files(folder: Path) -> Iterator[Path]:
    return (each for each in folder.rglob("*") if each.is_file())


def _range(asked: str, size: int) -> tuple[int, int]:
    first, _, last = asked.removeprefix("bytes=").partition("-")
    return int(first), min(size, int(last) + 1 if last else size)
