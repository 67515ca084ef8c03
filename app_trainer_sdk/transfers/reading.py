"""Owns how an answer's bytes are read: in pieces that are worth a write, whatever the line brings at once.

It must not know what they are, nor where they go.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from app_trainer_sdk.transfers.lines import ended_after

if TYPE_CHECKING:
    from app_trainer_sdk.transfers.web import Answer

#: Reads below this are put together: copying them costs less than writing them one by one.
SMALL_BYTES = 64 * 1024
#: So much of them is a piece.
GATHERED_BYTES = 256 * 1024
#: What came in so many seconds is a piece, however little it is.
MOMENT_SECONDS = 0.05


def beginning(answer: Answer, most: int, seconds: float, now: Callable[[], float] = time.monotonic) -> bytes:
    """The first ``most`` bytes of a short answer; of one that trickles in what came in about so many seconds.

    A connection whose answer was not read to its end is closed: the rest would be taken for the next answer.

    Raises:
        TimeoutError: what frames it comes byte by byte, and nothing of the body.
    """
    body, until = b"", now() + seconds
    with ended_after(answer.shutdown, 2 * seconds):
        while len(body) < most and now() < until:
            piece = answer.read1(most)
            if not piece:
                answer.release_conn()
                return body
            body += piece
    answer.close()
    return body[:most]


def pieces_of(answer: Answer, most: int, now: Callable[[], float]) -> Iterator[bytes | memoryview]:
    """The body in pieces of at most ``most`` bytes, each valid until the next is asked for.

    Small reads (a TLS record is 16 KiB) are put together; of a slow line comes what came in a moment, and of
    one that breaks what came before. Room is asked for by what came last: half a mebibyte of it for each record
    costs as much as all the rest of a download.
    """
    gathered = memoryview(bytearray(min(most, GATHERED_BYTES)))
    filled, room, told = 0, most, now()
    try:
        while piece := answer.read1(room):
            room = min(most, max(SMALL_BYTES, 4 * len(piece)))
            if not filled and len(piece) >= SMALL_BYTES:
                yield piece
                continue
            gathered[filled : filled + len(piece)] = piece
            filled += len(piece)
            if filled + room > len(gathered) or now() - told >= MOMENT_SECONDS:
                yield gathered[:filled]
                filled, told = 0, now()
    except Exception:
        if filled:
            yield gathered[:filled]
        raise
    if filled:
        yield gathered[:filled]
