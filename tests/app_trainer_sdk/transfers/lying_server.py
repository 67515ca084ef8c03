"""A server on loopback that serves one file and can do what servers do wrong, one fault a request."""

from __future__ import annotations

import gzip
import hashlib
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from app_trainer_sdk.transfers.addresses import Guard
from app_trainer_sdk.transfers.tools import Tools
from app_trainer_sdk.transfers.wanted import Patience, Wanted
from app_trainer_sdk.transfers.web import Web

RANGE = re.compile(r"bytes=(\d+)-(\d*)")
SILENCE = 0.25


def body_of(size: int, seed: int = 0) -> bytes:
    """Bytes in which no part looks like another."""
    return random.Random(seed).randbytes(size)


class NoJitter(random.Random):
    """Never waits."""

    def uniform(self, a: float, b: float) -> float:
        """Nothing."""
        return 0.0


def impatient(**patience: Any) -> Tools:
    """Tools for servers that are silent or trickle. On a busy machine an honest one may look like that, too."""
    return tools(**{"silence": SILENCE, "slow_seconds": 0.3, **patience})


def tools(*, silence: float = 20.0, **patience: Any) -> Tools:
    """Tools for tests: small parts, no jitter, loopback allowed."""
    small = {
        "part_bytes": 64 * 1024,
        "piece_bytes": 16 * 1024,
        "connections": 4,
        "tries": 5,
        **patience,
    }
    web = Web(Guard(("127.0.0.1", "localhost")), silence_seconds=silence, connect_seconds=20.0)
    return Tools(web, Patience(**small), chance=NoJitter(0))


class LyingServer(ThreadingHTTPServer):
    """Serves ``body`` at every path.

    Args:
        body: the file.
        script: a fault for each GET, in the order they come; honest when it is at its end.
        always: a fault for every GET once the script is at its end.
        head: whether HEAD is answered.
        ranges: whether ranges are served.
        lengths: whether it says how long the file is.
        etag: the ETag; empty for none.
        hold: called with the number of bytes sent so far, before each piece.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, body: bytes, script: Iterable[str] = (), *, always: str = "", head: bool = True,
        ranges: bool = True, lengths: bool = True, etag: str | None = None,
        hold: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        self.body = body
        self.script = deque(script)
        self.always = always
        self.head, self.ranges, self.lengths = head, ranges, lengths
        self.etag = f'"{hashlib.md5(body).hexdigest()}"' if etag is None else etag
        self.hold = hold
        self.elsewhere = ""
        self.sent = 0
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.released = threading.Event()
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/file"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def gets(self) -> list[dict[str, str]]:
        """Headers of the GETs that came."""
        return [headers for method, _, headers in self.requests if method == "GET"]

    def fault(self) -> str:
        """What to do wrong now."""
        with self.lock:
            return self.script.popleft() if self.script else self.always

    def end(self) -> None:
        """Go away."""
        self.released.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests."""

    def wanted(self, *more: str, known: bool = True, **said: Any) -> Wanted:
        """The file as a job asks for it."""
        digest = {"size": len(self.body), "sha256": hashlib.sha256(self.body).hexdigest()} if known else {}
        return Wanted("file", (self.url, *more), **{**digest, **said})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LyingServer

    def log_message(self, *arguments: Any) -> None:
        """Be silent."""

    def do_HEAD(self) -> None:
        self._note()
        if not self.server.head:
            return self._say(403, {"Content-Length": "0"})
        headers = {"ETag": self.server.etag} if self.server.etag else {}
        if self.server.lengths:
            headers["Content-Length"] = str(len(self.server.body))
        return self._say(200, headers)

    def do_GET(self) -> None:
        self._note()
        body, asked = self.server.body, RANGE.fullmatch(self.headers.get("Range", ""))
        start, end = 0, len(body)
        if asked and self.server.ranges:
            start, end = int(asked[1]), min(len(body), int(asked[2] or len(body)) + 1)
        probe = self.headers.get("Range") == "bytes=0-0"
        fault = "" if probe else self.server.fault()
        if fault:
            return getattr(self, f"lie_{fault}")(start, end)
        match = self.headers.get("If-Match")
        if match is not None and match != self.server.etag:
            return self._say(412, {"Content-Length": "0"})
        if asked and self.server.ranges:
            if start >= len(body):
                return self._say(416, {"Content-Range": f"bytes */{len(body)}", "Content-Length": "0"})
            return self._part(start, end)
        return self._whole()

    # Honest.

    def _part(self, start: int, end: int, *, status: int = 206, **headers: str) -> None:
        piece = self.server.body[start:end]
        said = {
            "Content-Range": f"bytes {start}-{end - 1}/{len(self.server.body)}",
            "Content-Length": str(len(piece)),
            **({"ETag": self.server.etag} if self.server.etag else {}),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }  # fmt: skip
        self._say(status, said)
        self._send(piece)

    def _whole(self) -> None:
        etag = {"ETag": self.server.etag} if self.server.etag else {}
        if self.server.lengths:
            self._say(200, {"Content-Length": str(len(self.server.body)), **etag})
            self._send(self.server.body)
        else:
            self._say(200, {"Transfer-Encoding": "chunked", **etag})
            self._chunks(self.server.body)

    def _note(self) -> None:
        with self.server.lock:
            self.server.requests.append((self.command, self.path, dict(self.headers)))

    def _say(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def _send(self, piece: bytes) -> None:
        for at in range(0, len(piece), 16384):
            if self.server.hold is not None:
                self.server.hold(self.server.sent)
            self._send_part(piece[at : at + 16384])

    def _send_part(self, part: bytes, head: bytes = b"", tail: bytes = b"") -> None:
        """Counted before it is sent: who has it all must not find less."""
        with self.server.lock:
            self.server.sent += len(part)
        self.wfile.write(head + part + tail)

    def _chunks(self, piece: bytes, *, close: bool = True) -> None:
        for at in range(0, len(piece), 16384):
            part = piece[at : at + 16384]
            self._send_part(part, f"{len(part):x}\r\n".encode(), b"\r\n")
        if close:
            self.wfile.write(b"0\r\n\r\n")

    # Lies.

    def lie_whole_200(self, start: int, end: int) -> None:
        self._whole()

    def lie_slice_200(self, start: int, end: int) -> None:
        self._part(start, end, status=200)

    def lie_shifted(self, start: int, end: int) -> None:
        shift = 1 if end < len(self.server.body) else -min(1, start)
        self._part(start + shift, end + shift)

    def lie_short_range(self, start: int, end: int) -> None:
        self._part(start, max(start + 1, end - 100))

    def lie_short_body(self, start: int, end: int) -> None:
        piece = self.server.body[start:end]
        self._say(
            206,
            {
                "Content-Range": f"bytes {start}-{end - 1}/{len(self.server.body)}",
                "Transfer-Encoding": "chunked",
            },
        )
        self._chunks(piece[: len(piece) // 2])

    def lie_overlong(self, start: int, end: int) -> None:
        self._say(
            206,
            {
                "Content-Range": f"bytes {start}-{end - 1}/{len(self.server.body)}",
                "Transfer-Encoding": "chunked",
            },
        )
        self._chunks(self.server.body[start:end] + b"more")

    def lie_wrong_total(self, start: int, end: int) -> None:
        self._part(start, end, Content_Range=f"bytes {start}-{end - 1}/{len(self.server.body) - 1}")

    def lie_no_content_range(self, start: int, end: int) -> None:
        piece = self.server.body[start:end]
        self._say(206, {"Content-Length": str(len(piece))})
        self._send(piece)

    def lie_status_416(self, start: int, end: int) -> None:
        self._say(416, {"Content-Length": "0"})

    def lie_new_etag(self, start: int, end: int) -> None:
        self.server.etag = f'"{random.random()}"'
        self._part(start, end)

    def lie_new_file(self, start: int, end: int) -> None:
        """Another file of the same length from now on."""
        self.server.body = body_of(len(self.server.body), seed=random.randrange(1 << 30))
        self.server.etag = f'"{hashlib.md5(self.server.body).hexdigest()}"'
        self._say(412, {"Content-Length": "0"})

    def lie_gzip(self, start: int, end: int) -> None:
        packed = gzip.compress(self.server.body[start:end])
        said = {"Content-Encoding": "gzip", "Content-Length": str(len(packed))}
        self._say(206, {**said, "Content-Range": f"bytes {start}-{end - 1}/{len(self.server.body)}"})
        self.wfile.write(packed)

    def lie_truncate(self, start: int, end: int) -> None:
        piece = self.server.body[start:end]
        self._say(
            206,
            {
                "Content-Range": f"bytes {start}-{end - 1}/{len(self.server.body)}",
                "Content-Length": str(len(piece)),
            },
        )
        self._send(piece[: len(piece) // 3])
        self.close_connection = True

    def lie_silence(self, start: int, end: int) -> None:
        self.server.released.wait(5.0)
        self.close_connection = True

    def lie_silence_in_body(self, start: int, end: int) -> None:
        piece = self.server.body[start:end]
        self._say(
            206,
            {
                "Content-Range": f"bytes {start}-{end - 1}/{len(self.server.body)}",
                "Content-Length": str(len(piece)),
            },
        )
        self._send(piece[: len(piece) // 2])
        self.server.released.wait(5.0)
        self.close_connection = True

    def lie_trickle(self, start: int, end: int) -> None:
        piece = self.server.body[start:end]
        self._say(
            206,
            {
                "Content-Range": f"bytes {start}-{end - 1}/{len(self.server.body)}",
                "Content-Length": str(len(piece)),
            },
        )
        for at in range(min(len(piece), 200)):
            self.wfile.write(piece[at : at + 1])
            if self.server.released.is_set():
                break
            time.sleep(0.05)
        self.close_connection = True

    def lie_endless_frame(self, start: int, end: int) -> None:
        """The size of a chunk, digit after digit: each comes in time, and no byte of the file ever."""
        said = f"bytes {start}-{end - 1}/{len(self.server.body)}"
        self._say(206, {"Content-Range": said, "Transfer-Encoding": "chunked"})
        self.close_connection = True
        while not self.server.released.wait(0.05):
            self.wfile.write(b"0")

    def lie_redirect_loop(self, start: int, end: int) -> None:
        with self.server.lock:
            self.server.script.appendleft("redirect_loop")
            if len(self.server.requests) > 60:
                self.server.script.clear()
        self._say(302, {"Location": self.path, "Content-Length": "0"})

    def lie_redirect(self, start: int, end: int) -> None:
        self._say(307, {"Location": self.server.elsewhere, "Content-Length": "0"})

    def lie_refused(self, start: int, end: int) -> None:
        self._say(403, {"Content-Length": "0"})

    def lie_busy(self, start: int, end: int) -> None:
        self._say(429, {"Content-Length": "0", "Retry-After": "0"})

    def lie_patience(self, start: int, end: int) -> None:
        self._say(429, {"Content-Length": "0", "Retry-After": "7"})

    def lie_broken(self, start: int, end: int) -> None:
        self._say(500, {"Content-Length": "0"})

    def lie_drop(self, start: int, end: int) -> None:
        self.close_connection = True

    def lie_wrong_bytes(self, start: int, end: int) -> None:
        piece = bytes(each ^ 255 for each in self.server.body[start:end])
        self._say(
            206,
            {
                "Content-Range": f"bytes {start}-{end - 1}/{len(self.server.body)}",
                "Content-Length": str(len(piece)),
            },
        )
        self._send(piece)


LIES = sorted(name.removeprefix("lie_") for name in vars(_Handler) if name.startswith("lie_"))
