"""Owns what may not be said: secrets and signed queries are cut out of every text that leaves a process.

Two ways at once. What looks like a secret goes by its form: the query and the user of any URL, bearer tokens,
signature parameters. What does not goes because it was :func:`remembered <remember>`: the callback token,
the signing secret, queries of the job's URLs. Torch-free; it must not know who speaks or where to.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from app_trainer_sdk.errors import json_pointer
from app_trainer_sdk.paths import PREFIX

MARK = "[redacted]"
#: Variables that only the sender of events reads; a rank, a trainer or a tracker has no business with them.
SECRET_VARIABLES = tuple(PREFIX + name for name in ("CALLBACK_TOKEN", "CALLBACK_SECRET"))
SHORTEST_SECRET, SHORTEST_VALUE = 4, 8

_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*://)(?:[^\s/?#'\"<>@]*@)?([^\s?#'\"<>]*)([?#][^\s'\"<>]*)?")
_TARGET = re.compile(r"(/[^\s?#'\"<>]*)\?[^\s'\"<>)]+")  # a URL's path with its query, as HTTP libraries log it
_FORMS = re.compile(
    r"(?i)(\bbearer\s+|\bbasic\s+|\b(?:x-amz-[a-z-]+|x-goog-[a-z-]+|signature|sig|awsaccesskeyid)=)[^\s&'\"<>]{8,}"
    r"|\bwhsec_[A-Za-z0-9+/=_-]{8,}|\bhf_[A-Za-z0-9]{20,}"
)
#: Parameters that sign a URL and change from signing to signing; they say nothing of what it names.
_SIGNING = re.compile(
    r"(?i)x-amz-.*|x-goog-.*|signature|sig|expires|policy|key-pair-id|awsaccesskeyid|googleaccessid"
    r"|s[eprtv]|spr|sk[a-z]+|token|access_token"
)
QUERY_DIGEST = "query-sha256"

_known: set[str] = set()
_pattern: re.Pattern[str] | None = None


def remember(*secrets: str | None) -> None:
    """From now on these values are cut out of whatever :func:`redact` is given. Very short ones are not."""
    global _pattern
    new = {each for each in secrets if each and len(each) >= SHORTEST_SECRET} - _known
    if new:
        _known.update(new)
        longest_first = sorted(_known, key=len, reverse=True)
        _pattern = re.compile("|".join(map(re.escape, longest_first)))


def remember_document(document: Any) -> None:
    """Remember what is secret in the URLs of a document: queries, their longer values, passwords."""
    for text in _strings(document):
        for url in (each.group() for each in _URL.finditer(text)):
            remember(*_secrets_of(url))


def guard(document: Any = None) -> None:
    """Before a process says anything: remember its secrets and a job's, and put a filter before its logs."""
    remember_environment()
    remember_document(document)
    redact_logs()


def remember_environment(environment: Mapping[str, str] | None = None) -> None:
    """Remember the secrets that platforms pass as plain variables."""
    there = os.environ if environment is None else environment
    for name in SECRET_VARIABLES:
        remember(*there.get(name, "").split())


def redact(text: str) -> str:
    """``text`` without what may be a secret."""
    if _pattern is not None:
        text = _pattern.sub(MARK, text)
    if "://" in text:
        text = _URL.sub(_shown, text)
    if "?" in text:
        text = _TARGET.sub(rf"\1?{MARK}", text)
    return _FORMS.sub(lambda match: (match.group(1) or "") + MARK, text)


def redacted(value: Any) -> Any:
    """A copy of a JSON value in which every text is :func:`redacted <redact>`."""
    return _mapped(value, lambda text, pointer: redact(text))


def shown_url(url: str) -> str:
    """A URL without what may be a secret: the query may hold a signature, the host a password."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no URL: cut where a query or a password would end
        return url.partition("?")[0].partition("#")[0].rpartition("@")[2]
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"


def without_secrets(document: Any) -> Any:
    """A job as it may lie on a disk: of a URL's query only a digest stays, and nothing of its signature.

    So the same file under a fresh signature is the same, and another query another.
    """
    return _mapped(document, lambda text, pointer: _stored(text))


def shown_document(document: Any) -> tuple[Any, list[str]]:
    """A copy of a JSON value that anybody may read: every URL :func:`shown <shown_url>`, and JSON pointers to
    those that hid something.
    """
    cut: list[str] = []

    def shown(text: str, pointer: str) -> str:
        there = shown_url(text) if "://" in text else text
        if there != text:
            cut.append(pointer)
        return there

    return _mapped(document, shown), cut


def without_secret_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment for a process that does not send events."""
    private = {*SECRET_VARIABLES, *(name + "_FILE" for name in SECRET_VARIABLES)}
    return {name: value for name, value in environment.items() if name not in private}


class RedactingFilter(logging.Filter):
    """Redacts each record that passes: its message and its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, changed."""
        record.msg, record.args = redact(record.getMessage()), ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_text = redact(record.exc_text) if record.exc_text else None
        return True


def redact_logs() -> None:
    """Put a filter before every handler of the root logger, and before the one that is used without any."""
    handlers = [*logging.getLogger().handlers, logging.lastResort]
    for handler in handlers:
        if handler is not None and not any(isinstance(each, RedactingFilter) for each in handler.filters):
            handler.addFilter(RedactingFilter())


def _shown(match: re.Match[str]) -> str:
    rest = match.group(3)
    if match.group(2).endswith("://"):
        return match.group()
    return match.group(1) + match.group(2) + (f"?{MARK}" if rest and rest.startswith("?") else rest or "")


def _secrets_of(url: str) -> Iterator[str]:
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if parts.password:
        yield from (parts.password, unquote(parts.password))
    if len(parts.query) >= SHORTEST_VALUE:
        yield parts.query
    for pair in parts.query.split("&"):
        _, _, value = pair.partition("=")
        if len(value) >= SHORTEST_VALUE:
            yield from (value, unquote(value))


def _stored(text: str) -> str:
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) or text.startswith("file:"):
        return text
    try:
        parts = urlsplit(text)
    except ValueError:
        return redact(text)
    if parts.query.startswith(QUERY_DIGEST + "="):
        return text  # stored before
    names = [
        pair
        for pair in sorted(parse_qsl(parts.query, keep_blank_values=True))
        if not _SIGNING.fullmatch(pair[0])
    ]
    digest = hashlib.sha256(repr(names).encode()).hexdigest()[:12]
    return shown_url(text) + (f"?{QUERY_DIGEST}={digest}" if names else "")


def _mapped(value: Any, change: Callable[[str, str], str], pointer: str = "") -> Any:
    """A copy of a JSON value, each text changed; ``change`` gets the text and the JSON pointer to it."""
    if isinstance(value, str):
        return change(value, pointer)
    if isinstance(value, Mapping):
        return {key: _mapped(each, change, pointer + json_pointer(key)) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_mapped(each, change, f"{pointer}/{index}") for index, each in enumerate(value)]
    return value


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        for each in value:
            yield from _strings(each)
