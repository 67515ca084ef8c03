"""Owns what can be wrong with one answer of a server: never the end. It must not know what follows from it.

::

    Fault                    try again, it is charged to the mirror
    ├── Busy                 429, 503: try again, not before it says
    ├── Gone                 401, 403, 404, 410, or a host that must not be asked: this mirror is out
    ├── Unusable             what it has is not the file: this mirror is out
    ├── Overlong             more bytes than were asked for: those before them are not trusted either
    ├── NoRanges             200 to a range: the mirror may only be good for one whole stream
    ├── Changed              412, 416, another ETag: what came before may belong to another file
    └── Abandoned            we gave the request up ourselves: asked again elsewhere, charged to nobody

Messages hold URLs only as ``shown_url`` gives them.
"""

from __future__ import annotations


class Fault(Exception):  # noqa: N818 - not an error of ours
    """Something is wrong with one answer."""


class Busy(Fault):
    """The server asks for patience."""

    def __init__(self, message: str, seconds: float | None) -> None:
        super().__init__(message)
        self.seconds = seconds


class Gone(Fault):
    """The file is not there, or no longer for us."""


class Unusable(Fault):
    """The mirror has another file, or says it in a way we refused."""


class Overlong(Fault):
    """More bytes than were asked for."""


class NoRanges(Fault):
    """The whole file where a part was asked for."""


class Changed(Fault):
    """The file on the server is another one than before."""


class Abandoned(Fault):
    """The request was given up by this side."""
