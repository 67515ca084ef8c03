"""Owns what is asked of a download: the file, where it may be had, and how patient to be.

It must not know how it is done.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from app_trainer_sdk.quantities import MIB
from app_trainer_sdk.redaction import shown_url

#: Files of this size and more get parts of at most 32 MiB instead of 16.
LARGE_BYTES = 8 << 30
#: Smaller parts would spend their time waiting for answers.
LEAST_PART_BYTES = 4 * MIB
#: Parts for each connection, where the file is large enough: the last ones are what a slow connection, and the
#: digest, are behind at the end.
PARTS_EACH = 4


@dataclass(frozen=True)
class Wanted:
    """One file.

    Attributes:
        path: its name in the set of files it belongs to.
        urls: mirrors in the order of preference: ``https:``, ``http:`` or ``file:``.
        size: bytes, where known.
        sha256: hex digest, where known.
        git_sha1: git's blob id, which the Hub tells for small files instead of a SHA-256.
        setting: where the file was asked for, for messages.
        in_job: whether size and digest stand in the job, below ``setting``.
        credentials: headers for the mirrors' own hosts.
    """

    path: str
    urls: tuple[str, ...] = field(repr=False)
    size: int | None = None
    sha256: str | None = None
    git_sha1: str | None = None
    setting: str = ""
    in_job: bool = False
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def key(self) -> str:
        """Names the file among those in the making: its digest, or that of the places it is had from."""
        if self.sha256:
            return self.sha256
        place = "\n".join([self.git_sha1 or "", str(self.size), *map(shown_url, self.urls)])
        return "place-" + hashlib.sha256(place.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Patience:
    """How much is done at once, and how long trouble is borne.

    Attributes:
        connections: requests at a time for one file.
        part_bytes: bytes of a request; 0 for what suits the file's size (:meth:`part_of`).
        piece_bytes: read and written at once, at most.
        tries: failures in a row of one mirror, without a mebibyte between them, until it is given up: with the
            pauses between them, an outage of about a minute is outlasted.
        restarts: how often one file is begun anew.
        slow_seconds: over which the least rate is measured.
        least_rate: bytes a second below which a connection counts as dead.
        longest_wait: the longest ``Retry-After`` that is honoured; a longer one gives the mirror up.
        lagging_seconds: after which a part that is slower than a quarter of the median is asked for again.
        save_seconds: between two durable records of what is there.
        forget_seconds: after which a mirror's failures count no more when mirrors are compared.
    """

    connections: int = 8
    part_bytes: int = 0
    piece_bytes: int = 512 * 1024
    tries: int = 8
    restarts: int = 3
    slow_seconds: float = 30.0
    least_rate: float = 16 * 1024.0
    longest_wait: float = 120.0
    lagging_seconds: float = 10.0
    save_seconds: float = 2.0
    forget_seconds: float = 60.0

    def part_of(self, size: int) -> int:
        """Bytes of a part of a file of ``size`` bytes: 4 to 16 MiB, and up to 32 MiB for large files.

        Each connection gets as many parts as the others, and all parts are alike, so that all end together.
        """
        if self.part_bytes:
            return self.part_bytes
        share = _divided_up(size, self.connections)
        fewest = _divided_up(share, 32 * MIB if size >= LARGE_BYTES else 16 * MIB)
        each = max(1, fewest, min(PARTS_EACH, share // LEAST_PART_BYTES))
        return max(LEAST_PART_BYTES, _divided_up(share, each * MIB // 16) * MIB // 16)


def _divided_up(number: int, by: int) -> int:
    return -(-number // by)
