"""Owns the talk with whoever grants uploads: what is asked, in which words, and what the answers mean.

One URL, four questions, JSON both ways; the bytes themselves never go there. Everything is idempotent by the
file's digest: after a crash the same question gets the same upload. This file must not know how bytes are sent.

::

    {"do": "grant", "kind", "name", "path", "size", "sha256", "part_bytes"}
        -> {"state": "verified"} | {"state": "put", "upload_id", "url", "headers", "expires_s"}
         | {"state": "parts", "upload_id"}
    {"do": "parts", "upload_id", "parts": [{"number", "size", "sha256"}, at most 16]}
        -> {"parts": [{"number", "url", "headers", "expires_s"}]}
    {"do": "list", "upload_id"}      -> {"parts": [{"number", "size", "sha256"}]}
    {"do": "complete", "upload_id"}  -> {"state": "verified", "size", "sha256"} | {"state": "refused", "reason"}

Each question also has ``v``, ``job_id`` and ``attempt``. Expiry is told in seconds, since clocks differ.
409 with a newer ``attempt``: fenced. 410: no such job any more. 404: no such upload, ask anew.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, final

from app_trainer_sdk.errors import Fenced, StopRequested, UploadFailed, json_pointer
from app_trainer_sdk.files import json_object
from app_trainer_sdk.redaction import shown_url
from app_trainer_sdk.transfers.addresses import origin
from app_trainer_sdk.transfers.answers import refusal
from app_trainer_sdk.transfers.faults import Fault
from app_trainer_sdk.transfers.outgoing import Outgoing, Part
from app_trainer_sdk.transfers.reading import beginning
from app_trainer_sdk.transfers.web import Web

if TYPE_CHECKING:
    from app_trainer_sdk.callbacks.credentials import Credentials

ANSWER_BYTES, ANSWER_SECONDS = 1 << 20, 60.0
#: Parts that are granted at once: what is granted and not sent soon only expires.
BATCH = 16


@dataclass(frozen=True)
class Target:
    """Where bytes go.

    Attributes:
        url: presigned.
        headers: that were signed and must be sent.
        expires_s: seconds for which it is good; None for ever.
        setting: where in the job the URL stands, if it does.
    """

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    expires_s: float | None = None
    setting: str = ""


@dataclass(frozen=True)
class Offer:
    """What a receiver says to a file: it has it, it wants it in one piece (``put``), or in parts."""

    verified: bool = False
    upload_id: str = ""
    put: Target | None = None


class Grants(Protocol):
    """Who grants uploads. Every method may raise a ``Fault``: ask again later."""

    def grant(self, file: Outgoing) -> Offer:
        """How a file is wanted."""
        ...

    def parts(self, upload_id: str, wanted: Sequence[Part]) -> Mapping[int, Target]:
        """Where at most :data:`BATCH` parts go, by number."""
        ...

    def stored(self, upload_id: str) -> Mapping[int, str]:
        """Parts that are there: SHA-256 by number."""
        ...

    def complete(self, upload_id: str) -> str:
        """Everything was sent. Empty when size and digest were verified, else what is wrong."""
        ...


@final
class GrantClient:
    """Asks the control plane.

    Args:
        url: where to ask; never logged.
        job_id: the job.
        attempt: fencing token.
        credentials: the bearer token, as callbacks have it.
        web: connections.
    """

    def __init__(self, url: str, *, job_id: str, attempt: int, credentials: Credentials, web: Web) -> None:
        self._url = url
        self._head = {"v": 1, "job_id": job_id, "attempt": attempt}
        self._credentials = credentials
        self._web = web

    def grant(self, file: Outgoing) -> Offer:
        """How a file is wanted."""
        answer = self._ask("grant", **file.document())
        with self._understanding("grant"):
            state = answer["state"]
            if state == "verified":
                return Offer(verified=True)
            if state not in ("put", "parts"):
                raise ValueError
            identity = str(answer["upload_id"])
            return Offer(upload_id=identity, put=_target(answer) if state == "put" else None)

    def parts(self, upload_id: str, wanted: Sequence[Part]) -> Mapping[int, Target]:
        """Where parts go."""
        rows = [{"number": each.number, "size": each.size, "sha256": each.sha256} for each in wanted]
        answer = self._ask("parts", upload_id=upload_id, parts=rows)
        with self._understanding("parts"):
            return {int(each["number"]): _target(each) for each in answer["parts"]}

    def stored(self, upload_id: str) -> Mapping[int, str]:
        """Parts that are there."""
        answer = self._ask("list", upload_id=upload_id)
        with self._understanding("list"):
            return {int(each["number"]): str(each["sha256"]) for each in answer["parts"]}

    def complete(self, upload_id: str) -> str:
        """Everything was sent."""
        answer = self._ask("complete", upload_id=upload_id)
        return "" if answer.get("state") == "verified" else str(answer.get("reason", "not verified"))[:300]

    @contextlib.contextmanager
    def _understanding(self, what: str) -> Iterator[None]:
        """Whatever an answer lacks or has in another form is a fault of the receiver, not of this program."""
        try:
            yield
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            lacks = f"no {error.args[0]} in" if isinstance(error, KeyError) else "values of another form in"
            raise Fault(f"{shown_url(self._url)}: {lacks} the answer to {what}") from None

    def _ask(self, what: str, **facts: Any) -> dict[str, Any]:
        self._credentials.refresh()
        body = json.dumps({**self._head, "do": what, **facts}).encode()
        token = self._credentials.token
        headers = {
            "Content-Type": "application/json",
            **({"Authorization": f"Bearer {token}"} if token else {}),
        }
        with self._web.open("POST", self._url, headers, body=body) as answer:
            said = beginning(answer, ANSWER_BYTES, ANSWER_SECONDS)
            if answer.status != 200:
                raise self._refusal(answer, said)
        try:
            document = json.loads(said)
            if not isinstance(document, dict):
                raise ValueError
        except (ValueError, RecursionError):
            raise Fault(f"{shown_url(self._url)}: the answer to {what} is no JSON object") from None
        return document

    def _refusal(self, answer: Any, said: bytes) -> BaseException:
        place, status = shown_url(self._url), answer.status
        told = json_object(said)
        if status == 409 and isinstance(told.get("attempt"), int) and told["attempt"] > self._head["attempt"]:
            return Fenced(
                f"attempt {told['attempt']} of the job runs", expected="nothing to be uploaded by this one"
            )
        if status == 410:
            return StopRequested("canceled", checkpoint=False)
        if status in (400, 413, 422):
            reason = str(told.get("error", ""))[:200]
            return UploadFailed(f"{place} answered {status} {reason}".rstrip(), expected="a grant")
        if status in (401, 403):
            self._credentials.refresh(now=True)  # the token may have been changed meanwhile
        return refusal(answer, self._url)


@final
class OwnTargets:
    """Long-lived PUT URLs that the job itself carries: nobody is asked, and a 2xx of the store confirms.

    Content-MD5 goes along, so that a store refuses bytes that changed on the way.

    Args:
        urls: by ``artifact/path``.
    """

    def __init__(self, urls: Mapping[str, str]) -> None:
        self._urls = urls

    def grant(self, file: Outgoing) -> Offer:
        """The URL of the file."""
        name = f"{file.name}/{file.path}"
        url = self._urls.get(name)
        if url is None:
            raise UploadFailed(f"no URL for {name}", expected="one for each file", setting="/outputs/put")
        md5 = base64.b64encode(bytes.fromhex(file.md5)).decode()
        setting = json_pointer("outputs", "put", name)
        return Offer(upload_id=file.path, put=Target(url, {"Content-MD5": md5}, setting=setting))

    def parts(self, upload_id: str, wanted: Sequence[Part]) -> Mapping[int, Target]:
        """Files go in one piece."""
        raise AssertionError(upload_id)

    def stored(self, upload_id: str) -> Mapping[int, str]:
        """Files go in one piece."""
        raise AssertionError(upload_id)

    def complete(self, upload_id: str) -> str:
        """The store took it."""
        return ""


def _target(document: Mapping[str, Any]) -> Target:
    headers = {str(name): str(value) for name, value in dict(document.get("headers") or {}).items()}
    expires = document.get("expires_s")
    if origin(document["url"])[0] not in ("http", "https") or not isinstance(expires, int | float | None):
        raise Fault("a grant without a URL, or with an expiry that is no number")
    return Target(document["url"], headers, None if expires is None else float(expires))
