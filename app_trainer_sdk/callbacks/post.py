"""Owns one try to deliver: the request as it goes out and what came back, in at most some twenty seconds.

No redirect is followed, since it could lead a bearer token elsewhere. It must not know what an answer means.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.callbacks.signature import signature_headers
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.transfers.addresses import ANYWHERE
from app_trainer_sdk.transfers.pauses import retry_after
from app_trainer_sdk.transfers.reading import beginning
from app_trainer_sdk.transfers.web import Web

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
        self._web: Web | None = None

    def post(self, identity: str, body: bytes) -> Answer:
        """Try once; whatever happens is an answer."""
        import urllib3

        try:
            if self._web is None:
                self._web = Web(
                    ANYWHERE, connections=1, connect_seconds=CONNECT_SECONDS, silence_seconds=READ_SECONDS,
                    ca_file=self._credentials.ca_file,
                )  # fmt: skip
            answer = self._web.manager(self._url).request(
                "POST", self._url, body=body, headers=self._headers(identity, body), redirect=False,
                preload_content=False,
            )  # fmt: skip
            if answer.status < 200:  # and the real answer is still to come: nobody else may take it for theirs
                answer.close()
                return Answer(0, error=f"status {answer.status}")
            body = beginning(answer, ANSWER_BYTES, READ_SECONDS, self._clock)
            return Answer(answer.status, body, retry_after(answer.headers.get("Retry-After")))
        except (urllib3.exceptions.HTTPError, BadJob, OSError, ValueError) as error:
            self.close()  # the next try begins anew, with certificates as they are then
            return Answer(0, error=type(error).__name__)

    def close(self) -> None:
        """Close what is open."""
        if self._web is not None:
            self._web.close()
            self._web = None

    def _headers(self, identity: str, body: bytes) -> dict[str, str]:
        token = self._credentials.token
        return {
            "Content-Type": "application/json", "Idempotency-Key": identity, "webhook-id": identity,
            **({"Authorization": f"Bearer {token}"} if token else {}),
            **signature_headers(self._credentials.keys, identity, body, seconds=int(self._wall())),
        }  # fmt: skip
