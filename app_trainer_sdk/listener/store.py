"""Owns a small object store with presigned URLs that really expire: a server of its own, beside the listener.

The bytes of uploads and downloads come here and never to the listener's API. A URL is good for one method, one
place, one length and one SHA-256, until its time is over, which is looked at when a request begins and again
when its body has come. Objects are files; a part or an object is whole or not there. Not for the open
internet. This file must not know jobs or events.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from app_trainer_sdk.files import remove_tree
from app_trainer_sdk.listener.desk import DROPPED, SILENT, Fault
from app_trainer_sdk.listener.http import PIECE_BYTES, Handler, Server, inside
from app_trainer_sdk.transfers.grants import Target

CHECKSUM = "x-amz-checksum-sha256"


class Store(Server):
    """The store, in threads of its own while it is entered.

    Args:
        folder: where objects and parts lie.
        address: host and port; port 0 takes a free one.
        quota: bytes that it takes; 0 for as many as the disk.
        now: Unix time.
    """

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
                    shutil.copyfileobj(file, whole)
        Path(whole.name).replace(place)
        remove_tree(self.parts / upload)

    def place(self, key: str) -> Path:
        """Where an object lies; a ``ValueError`` for a name that would lie outside."""
        return inside(self.objects, key)

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
        files = (each for top in (self.objects, self.parts) for each in top.rglob("*") if each.is_file())
        return sum(each.stat().st_size for each in files) + size <= self.quota

    def __exit__(self, *ending: object) -> None:
        self.released.set()
        super().__exit__(*ending)

    def _signed(self, method: str, path: str, seconds: float, *words: str) -> str:
        expires = f"{self.now() + seconds:.3f}"
        return urlencode({"expires": expires, "signature": self._signature(method, path, expires, *words)})

    def _signature(self, *words: str) -> str:
        return hmac.new(self._key, "\n".join(words).encode(), hashlib.sha256).hexdigest()


class _Handler(Handler):
    server: Store

    def answer(self) -> None:
        """Take or give an object or a part, to who shows a signature for it."""
        store, parts = self.server, urlsplit(self.path)
        path, query = unquote(parts.path).lstrip("/"), dict(parse_qsl(parts.query))
        if self._misbehaves():
            return
        told, checksum = self.headers.get("Content-Length", ""), self.headers.get(CHECKSUM, "")
        if why := store.allows(self.command, path, query, told, checksum):
            self._answer(403, why, path)
        elif self.command == "GET":
            self._give(store.place(path.removeprefix("objects/")), path)
        elif not store.has_room(self.length):
            self._answer(507, "InsufficientStorage", path)
        else:
            self._take(path, checksum, float(query["expires"]))

    do_GET = do_PUT = answer  # noqa: N815 - the names http.server looks for

    def _give(self, place: Path, path: str) -> None:
        if not place.is_file():
            self._answer(404, "NoSuchKey", path)
            return
        size, asked = place.stat().st_size, self.headers.get("Range", "")
        start, end = _range(asked, size) if asked else (0, size)
        headers = {"ETag": f'"{place.stat().st_mtime_ns}-{size}"'}
        if asked:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self.begin(206 if asked else 200, end - start, headers)
        with place.open("rb") as file:
            file.seek(start)
            while start < end and (piece := file.read(min(PIECE_BYTES, end - start))):
                self.wfile.write(piece)
                start += len(piece)
        self.server.requests.append(("GET", path, 206 if asked else 200, 0))

    def _take(self, path: str, checksum: str, expires: float) -> None:
        place = inside(self.server.objects.parent, path)
        beside, came, digest = self.keep_body(place.parent)
        late, whole = self.server.now() >= expires, came == self.length
        if whole and not late and base64.b64encode(digest).decode() == checksum:
            name = f"{place.name}-{digest.hex()}" if path.startswith("parts/") else place.name
            beside.replace(place.with_name(name))
            self._answer(200, "", path, came)
            return
        beside.unlink()
        if whole:
            self._answer(403 if late else 400, "ExpiredRequest" if late else "BadDigest", path, came)
        else:
            self.server.requests.append(("PUT", path, 0, came))
            self.close_connection = True

    def _misbehaves(self) -> bool:
        """Do what was lined up instead of an answer, if anything was."""
        store = self.server
        fault = store.faults.popleft() if store.faults else Fault()
        if fault.delay:
            store.released.wait(fault.delay)
        if fault.status == SILENT:
            store.released.wait()
        self.close_connection = self.close_connection or fault.status is not None
        if fault.status not in (None, DROPPED, SILENT):
            self.say(fault.status or 500, b"<Error><Code>Told</Code></Error>")
        return fault.status is not None

    def _answer(self, status: int, why: str, path: str, came: int = 0) -> None:
        self.server.requests.append((self.command, path, status, came))
        self.say(status, f"<Error><Code>{why}</Code></Error>".encode() if why else b"")


def _kept_key(path: Path) -> bytes:
    """The signing key; URLs stay good over a restart."""
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(secrets.token_bytes(32))
    return path.read_bytes()


def _range(asked: str, size: int) -> tuple[int, int]:
    first, _, last = asked.removeprefix("bytes=").partition("-")
    return int(first), min(size, int(last) + 1 if last else size)
