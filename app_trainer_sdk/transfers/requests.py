"""Owns one request of a download: from asking for a part to its last byte on the disk.

It must not know what is asked next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final
from urllib.parse import unquote, urlsplit

from app_trainer_sdk.redaction import shown_url
from app_trainer_sdk.transfers.answers import Facts, ask, check_part, check_whole
from app_trainer_sdk.transfers.faults import Abandoned, Changed, Fault, Gone, Overlong
from app_trainer_sdk.transfers.mirrors import Mirror
from app_trainer_sdk.transfers.partial import PartWriter
from app_trainer_sdk.transfers.reading import pieces_of
from app_trainer_sdk.transfers.wanted import Patience, Wanted
from app_trainer_sdk.transfers.web import Web

if TYPE_CHECKING:
    from app_trainer_sdk.transfers.web import Answer


@dataclass(frozen=True)
class Span:
    """Which bytes are asked for.

    Attributes:
        begin: of the part in the file.
        done: bytes of it that are there.
        length: of the part; None for a whole file of unknown size.
        size: of the file.
        whole: ask for the whole file and not for a range.
    """

    begin: int
    done: int
    length: int | None
    size: int | None
    whole: bool


@final
class Request:
    """One part asked of one mirror."""

    def __init__(self, index: int, mirror: Mirror, writer: PartWriter, began: float) -> None:
        self.index = index
        self.mirror = mirror
        self.began = self.moved_at = began
        self.received = 0
        self.abandoned = False
        self._writer = writer
        self._answer: Answer | None = None

    def abandon(self) -> None:
        """Give it up, from any thread: nothing is written any more, and a read in progress ends."""
        self.abandoned = True
        self._writer.close()
        self.cut_off()

    def cut_off(self) -> None:
        """End a read in progress, from any thread, as if the server had gone."""
        if self._answer is not None:
            with contextlib.suppress(Exception):  # it may be over already
                self._answer.shutdown()

    def close(self) -> None:
        """It is over."""
        self._writer.close()

    def perform(
        self, span: Span, *, web: Web, wanted: Wanted, patience: Patience, now: Callable[[], float],
        add: Callable[[int, str], None],
    ) -> None:  # fmt: skip
        """Fetch what is missing of the part and write it where it belongs.

        Raises:
            Fault: what came is not, or not all of, what was asked for.
            Lost: the file is somebody else's now.
            OSError: of the disk.
        """
        pace, self.moved_at = _Pace(patience, now), now()
        expected = None if span.length is None else span.length - span.done
        for piece in self._pieces(span, web, wanted, patience.piece_bytes, now):
            if self.abandoned:
                raise Abandoned
            if expected is not None and self.received + len(piece) > expected:
                raise Overlong(f"{self.mirror.shown}: more bytes than were asked for")
            done = span.done + self.received
            self._writer.write(piece, span.begin + done, done + len(piece))
            self.received += len(piece)
            self.moved_at = now()
            add(len(piece), self.mirror.url)
            if not pace.keeps(len(piece)):
                raise Fault(f"{self.mirror.shown}: less than {patience.least_rate:,.0f} bytes a second")
        if expected is not None and self.received < expected:
            raise Fault(f"{self.mirror.shown}: {self.received} bytes instead of {expected}")

    def _pieces(
        self, span: Span, web: Web, wanted: Wanted, piece_bytes: int, now: Callable[[], float]
    ) -> Iterator[bytes | memoryview]:
        start = span.begin + span.done
        end = None if span.length is None else span.begin + span.length
        if urlsplit(self.mirror.url).scheme == "file":
            yield from _local_pieces(self.mirror, start, end, piece_bytes)
            return
        headers = {}
        etag = self.mirror.facts.etag if self.mirror.facts else None
        if not span.whole:
            assert end is not None
            assert start < end, "an empty range is never asked for"
            headers["Range"] = f"bytes={start}-{end - 1}"
            if etag is not None:
                headers["If-Match"] = etag
        with web.open("GET", self.mirror.url, headers, credentials=wanted.credentials) as answer:
            self._answer = answer
            if span.whole:
                check_whole(answer, self.mirror.url, span.size)
            else:
                assert span.size is not None
                assert end is not None
                check_part(answer, self.mirror.url, start, end, span.size, etag)
            yield from pieces_of(answer, piece_bytes, now)


@final
class _Pace:
    """Whether bytes come fast enough to be worth waiting for: one byte a second is no progress."""

    def __init__(self, patience: Patience, now: Callable[[], float]) -> None:
        self._seconds = patience.slow_seconds
        self._least = patience.least_rate * patience.slow_seconds
        self._now = now
        self._began = now()
        self._bytes = 0

    def keeps(self, size: int) -> bool:
        self._bytes += size
        if self._now() - self._began < self._seconds:
            return True
        enough = self._bytes >= self._least
        self._began, self._bytes = self._now(), 0
        return enough


def ask_mirror(mirror: Mirror, web: Web, wanted: Wanted) -> Facts:
    """What a mirror says of the file, asked once."""
    with mirror.asking:
        if mirror.facts is None:
            local = urlsplit(mirror.url).scheme == "file"
            mirror.facts = _ask_local(mirror) if local else ask(web, mirror.url, wanted.credentials)
        return mirror.facts


def _ask_local(mirror: Mirror) -> Facts:
    try:
        found = _local(mirror).stat()
    except OSError as error:
        raise Gone(f"{shown_url(mirror.url)}: {error.strerror}") from None
    return Facts(found.st_size, f'"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"', ranged=True)


def _local_pieces(mirror: Mirror, start: int, end: int | None, piece_bytes: int) -> Iterator[bytes]:
    before = mirror.facts
    if before is not None and _ask_local(mirror).etag != before.etag:
        raise Changed(f"{mirror.shown} was changed")
    with _local(mirror).open("rb") as file:
        file.seek(start)
        while end is None or start < end:
            piece = file.read(piece_bytes if end is None else min(piece_bytes, end - start))
            if not piece:
                return
            start += len(piece)
            yield piece


def _local(mirror: Mirror) -> Path:
    return Path(unquote(urlsplit(mirror.url).path))
