"""What a line brings comes in pieces that are worth a write, and nothing of it is lost or held back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from app_trainer_sdk.transfers.reading import GATHERED_BYTES, MOMENT_SECONDS, SMALL_BYTES, pieces_of

KIB = 1024
MOST = 512 * KIB
RECORD = 16 * KIB


class Line:
    """An answer that brings reads of these sizes; at an exception it breaks. It tells what it was asked for."""

    def __init__(self, reads: Sequence[int | Exception], *, seconds: float = 0.0) -> None:
        self.now, self.rooms = 0.0, []
        self._reads, self._seconds = list(reads), seconds

    def read1(self, room: int) -> bytes:
        self.rooms.append(room)
        self.now += self._seconds
        if not self._reads:
            return b""
        read = self._reads.pop(0)
        if isinstance(read, Exception):
            raise read
        if read > room:
            self._reads.insert(0, read - room)
        return bytes([len(self.rooms) % 251]) * min(read, room)


def pieces(line: Any, most: int = MOST) -> list[bytes]:
    return [bytes(each) for each in pieces_of(line, most, lambda: line.now)]


def test_records_are_put_together_and_room_is_small():
    """Of 16 KiB each, as TLS brings them: few writes, and no buffer of half a mebibyte for one record."""
    line = Line([RECORD] * 100)
    told = pieces(line)

    assert sum(map(len, told)) == 100 * RECORD
    assert len(told) == 8
    assert max(map(len, told)) <= GATHERED_BYTES
    assert set(line.rooms[1:]) == {SMALL_BYTES}


def test_bytes_stay_in_order():
    """Small and large reads mixed: what comes out is what went in."""
    sizes = [7, SMALL_BYTES, 100, RECORD, MOST, 1]
    line, again = Line(sizes), Line(sizes)
    told = b"".join(pieces(line))

    assert told == b"".join(again.read1(room) for room in line.rooms)
    assert len(told) == sum(sizes)


def test_large_reads_come_as_they_are():
    """A fast line is not copied."""
    line = Line([MOST] * 5)

    assert [len(each) for each in pieces(line)] == [MOST] * 5


def test_a_slow_line_is_not_held_back():
    """Each read that took a moment is a piece: a trickle is seen for what it is, and a kill costs little."""
    assert pieces(Line([1, 1, 1], seconds=MOMENT_SECONDS)) == [b"\x01", b"\x02", b"\x03"]


def test_what_came_before_a_line_broke_counts():
    """Else a line that breaks every few records would never bring a file."""
    line: Any = Line([RECORD, RECORD, ConnectionResetError()])
    told = pieces_of(line, MOST, lambda: line.now)

    assert len(next(told)) == 2 * RECORD
    with pytest.raises(ConnectionResetError):
        next(told)


def test_pieces_smaller_than_a_record():
    """Whoever asks for little gets no more than that at once."""
    assert [len(each) for each in pieces(Line([40_000]), most=10_000)] == [10_000] * 4
