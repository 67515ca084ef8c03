"""Owns how a job may name what lies somewhere: paths and URLs, each right by itself or told as wrong.

Each function is a validator: the text as it was, or a ``ValueError`` with what was expected. This file must not
know who is allowed to reach a host, nor whether anything is there.
"""

from __future__ import annotations

import contextlib
import re
from urllib.parse import urlsplit

from app_trainer_sdk.names import unsafe_name

#: What begins like a URL, its slashes miscounted too; one letter is a drive. ``./a:/b`` is a path all the same.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def place(url: str) -> str:
    """A path or URL that this SDK can read, or a ``ValueError`` with what was expected."""
    if "\0" in url:
        raise ValueError("a path or URL without NUL")
    word = _SCHEME.match(url)
    if word is None and "://" not in url and not url.startswith("file:"):
        return url
    try:
        parts = urlsplit(url)
        there, _ = parts.hostname, parts.port
    except ValueError:
        parts, there = urlsplit(""), None
    if parts.scheme == "file" and there in (None, "localhost") and parts.path.startswith("/"):
        return url
    if parts.scheme in ("http", "https") and there:
        return url
    unknown = word is not None and word[1].lower() not in ("file", "http", "https")
    since = f", since {word[1]}: looks like a URL with an unknown scheme" if unknown and word else ""
    raise ValueError(f"a path, file:///path or https://host/path{since}")


def receiver(url: str) -> str:
    """A URL that events can be posted to, or a ``ValueError`` with what was expected."""
    if url.startswith(("http://", "https://")):
        with contextlib.suppress(ValueError):
            return place(url)
    raise ValueError("https://host/path")


def relative(name: str) -> str:
    """A name that stays in its folder, or a ``ValueError`` with what was expected."""
    if wrong := unsafe_name(name):
        raise ValueError(f"a relative name below the folder, and not {wrong}")
    return name
