"""Owns one try to deliver: the request as it goes out and what came back, in at most some twenty seconds.

No redirect is followed, since it could lead a bearer token elsewhere. It must not know what an answer means.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.callbacks.signature import signature_headers
from app_trainer_sdk.transfers.pauses import retry_after

if TYPE_CHECKING:
    import urllib3

CONNECT_SECONDS, READ_SECONDS = 5.0, 15.0
ANSWER_BYTES = 16_384


@dataclass(frozen=True)
class Answer:
    """What came back.

    Attributes:
        status: the HTTP status, 0 when there was no answer.
        body: its beginning.
        retry_after: seconds the receiver asks to wait.
        error: what went wrong on the way, by its kind alone: the text may hold the URL.
    """

    status: int
    body: bytes = b""
    retry_after: float | None = None
    error: str = ""

    def __str__(self) -> str:
        return f"status {self.status}" if self.status else self.error


class Postman:
    """Posts events to one URL.

    Args:
        url: where to; it may carry a signature and is never logged.
        credentials: token, keys and certificates.
        wall: Unix time, for the signature.
        clock: seconds, monotonic.
    """

    def __init__(
        self, url: str, credentials: Credentials, *, wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._url = url
        self._credentials = credentials
        self._wall = wall
        self._clock = clock
        self._pool: urllib3.PoolManager | None = None

    def post(self, identity: str, body: bytes) -> Answer:
        """Try once; whatever happens is an answer."""
        import urllib3

        try:
            if self._pool is None:
                timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
                self._pool = urllib3.PoolManager(
                    timeout=timeout, retries=False, ca_certs=self._credentials.ca_file
                )
            answer = self._pool.request(
                "POST", self._url, body=body, headers=self._headers(identity, body), redirect=False,
                preload_content=False,
            )  # fmt: skip
            body = _beginning(answer, self._clock)
            return Answer(answer.status, body, retry_after(answer.headers.get("Retry-After")))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            self.close()  # the next try begins anew, with certificates as they are then
            return Answer(0, error=type(error).__name__)

    def close(self) -> None:
        """Close what is open."""
        if self._pool is not None:
            self._pool.clear()
            self._pool = None

    def _headers(self, identity: str, body: bytes) -> dict[str, str]:
        token = self._credentials.token
        return {
            "Content-Type": "application/json", "Idempotency-Key": identity, "webhook-id": identity,
            **({"Authorization": f"Bearer {token}"} if token else {}),
            **signature_headers(self._credentials.keys, identity, body, seconds=int(self._wall())),
        }  # fmt: skip


def _beginning(answer: urllib3.BaseHTTPResponse, clock: Callable[[], float]) -> bytes:
    """The beginning of a body; one that trickles in is given no more time than one that does not come."""
    body, deadline = b"", clock() + READ_SECONDS
    while len(body) < ANSWER_BYTES and clock() < deadline:
        piece = answer.read1(ANSWER_BYTES)
        if not piece:
            answer.release_conn()
            return body
        body += piece
    answer.close()  # the rest would be taken for the next answer
    return body[:ANSWER_BYTES]
