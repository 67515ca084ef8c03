"""Owns what an answer must say before its bytes are believed: status, range, encoding, ETag, length.

It must not know who asked, nor where bytes go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from app_trainer_sdk.redaction import shown_url
from app_trainer_sdk.transfers.faults import Busy, Changed, Fault, Gone, NoRanges
from app_trainer_sdk.transfers.pauses import retry_after
from app_trainer_sdk.transfers.web import Web

if TYPE_CHECKING:
    from app_trainer_sdk.transfers.web import Answer

_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_EMPTY = re.compile(r"bytes \*/0")
GONE = frozenset({401, 403, 404, 410})
BUSY = frozenset({429, 503})


@dataclass(frozen=True)
class Facts:
    """What a server says of a file before a byte of it is taken.

    Attributes:
        size: bytes, None when it does not say.
        etag: the strong ETag, which names exactly these bytes; None without one.
        ranged: whether it serves parts; None when that was not tried.
    """

    size: int | None
    etag: str | None
    ranged: bool | None = None


def ask(web: Web, url: str, credentials: Mapping[str, str] | None = None) -> Facts:
    """Size and ETag by HEAD; where it is refused or says nothing (a URL signed for GET), by a one-byte range.

    Raises:
        Fault: as the answers are.
    """
    with web.open("HEAD", url, credentials=credentials) as answer:
        if answer.status in (404, 410) or answer.status in BUSY:
            raise refusal(answer, url)
        size = content_length(answer) if answer.status == 200 and not is_encoded(answer) else None
        if size:  # some say 0 to every HEAD
            return Facts(size, strong_etag(answer))
    with web.open("GET", url, {"Range": "bytes=0-0"}, credentials=credentials) as answer:
        if answer.status == 416:
            empty = _EMPTY.fullmatch(answer.headers.get("Content-Range", ""))
            return Facts(0, strong_etag(answer)) if empty else Facts(None, None, ranged=False)
        if answer.status not in (200, 206):
            raise refusal(answer, url)
        refuse_encoding(answer, url)
        found = content_range(answer)
        if answer.status == 206 and found is not None and found[:2] == (0, 0):
            return Facts(found[2], strong_etag(answer), ranged=True)
        return Facts(
            content_length(answer) if answer.status == 200 else None, strong_etag(answer), ranged=False
        )


def check_part(answer: Answer, url: str, start: int, end: int, size: int, etag: str | None) -> None:
    """Whether an answer is exactly the bytes from ``start`` to before ``end`` of the file that is meant.

    Raises:
        NoRanges: the whole file (200): its first bytes must not be written in the middle.
        Changed: another file than before.
        Fault: another range, another length, or encoded although that was refused.
    """
    if answer.status == 200:
        if (start, end) != (0, size) or content_length(answer) != size or "Content-Range" in answer.headers:
            raise NoRanges(f"{shown_url(url)} serves no ranges: the whole file (200 to a range)")
        refuse_encoding(answer, url)
        _check_etag(answer, url, etag)
        return  # the part is the whole file
    if answer.status in (412, 416):
        raise Changed(f"{shown_url(url)}: {answer.status} to the bytes {start}-{end - 1}")
    if answer.status != 206:
        raise refusal(answer, url)
    refuse_encoding(answer, url)
    found = content_range(answer)
    if found is None or found[:2] != (start, end - 1):
        said = answer.headers.get("Content-Range", "no Content-Range")
        raise Fault(f"{shown_url(url)}: {said[:80]!r} to the bytes {start}-{end - 1}")
    if found[2] is not None and found[2] != size:
        raise Changed(f"{shown_url(url)}: a file of {found[2]} bytes, {size} before")
    _check_etag(answer, url, etag)
    length = content_length(answer)
    if length is not None and length != end - start:
        raise Fault(f"{shown_url(url)}: {length} bytes to a range of {end - start}")


def _check_etag(answer: Answer, url: str, etag: str | None) -> None:
    now = strong_etag(answer)
    if etag is not None and now is not None and now != etag:
        raise Changed(f"{shown_url(url)}: another ETag than before")


def check_whole(answer: Answer, url: str, size: int | None) -> None:
    """Whether an answer is a whole file, of ``size`` bytes when that is known.

    Raises:
        Fault: it is not.
    """
    if answer.status != 200:
        raise refusal(answer, url)
    if answer.headers.get("Content-Range") is not None:
        raise Fault(f"{shown_url(url)}: a part where the whole file was asked for")
    refuse_encoding(answer, url)
    length = content_length(answer)
    if size is not None and length is not None and length != size:
        raise Changed(f"{shown_url(url)}: a file of {length} bytes, expected {size}")


def refusal(answer: Answer, url: str) -> Fault:
    """The fault that a status is."""
    said = f"{shown_url(url)} answered {answer.status}"
    if answer.status in GONE:
        return Gone(said)
    if answer.status in BUSY:
        return Busy(said, retry_after(answer.headers.get("Retry-After")))
    return Fault(said)


def refuse_encoding(answer: Answer, url: str) -> None:
    """Refuse bytes that are not the file's own: a compressed answer has other lengths and ranges."""
    if is_encoded(answer):
        found = answer.headers.get("Content-Encoding", "")
        raise Fault(f"{shown_url(url)}: encoded as {found[:40]!r} although that was refused")


def is_encoded(answer: Answer) -> bool:
    """Whether the body is something other than the file's bytes."""
    return answer.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity")


def strong_etag(answer: Any) -> str | None:
    """The ETag, when it promises equality byte for byte (RFC 9110 section 8.8.1)."""
    said = answer.headers.get("ETag")
    return said if said and len(said) > 2 and said[0] == said[-1] == '"' else None


def content_range(answer: Answer) -> tuple[int, int, int | None] | None:
    """First byte, last byte and total (None for ``*``) that an answer says it is."""
    match = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
    if match is None:
        return None
    return int(match[1]), int(match[2]), None if match[3] == "*" else int(match[3])


def content_length(answer: Answer) -> int | None:
    """``Content-Length``, None when it does not say or is chunked."""
    said = answer.headers.get("Content-Length", "")
    if not said.isascii() or not said.isdecimal() or "Transfer-Encoding" in answer.headers:
        return None
    return int(said[:18])
