"""Where events go: nowhere, to several, into memory, into lines."""

from __future__ import annotations

import io
import math
from typing import Any

from app_trainer_sdk.callbacks.sinks import LinesSink, ManySinks, NoSink, RecordingSink


class Said:
    """An event as a sink looks at it."""

    body = b'{"type":"job.accepted"}'


class Slow(RecordingSink):
    """Heard up to an event, and has something left."""

    def __init__(self, heard: float) -> None:
        super().__init__()
        self.heard, self.hurried = heard, 0.0

    def acknowledged(self) -> float:
        return self.heard

    def close(self, seconds: float) -> bool:
        return False

    def hurry(self, seconds: float) -> None:
        self.hurried = seconds


def test_those_that_are_done_at_once():
    """Nobody answers, and nothing waits."""
    for sink in (NoSink(), RecordingSink(), LinesSink(io.StringIO())):
        sink.hurry(0.0)

        assert sink.acknowledged() == math.inf
        assert sink.close(0.0)


def test_several_get_the_same_and_are_as_far_as_the_slowest():
    """Closed once all are; each is hurried."""
    event: Any = Said()
    quick, slow = RecordingSink(), Slow(3.0)
    many = ManySinks([quick, slow])
    many.send(event)
    many.hurry(2.0)

    assert quick.events == slow.events == [event]
    assert many.acknowledged() == 3.0
    assert not many.close(0.1)
    assert slow.hurried == 2.0
    assert (ManySinks([]).acknowledged(), ManySinks([]).close(0.1)) == (math.inf, True)


def test_lines_are_written_until_their_reader_goes():
    """That is nothing to the run."""
    event: Any = Said()
    stream = io.StringIO()
    sink = LinesSink(stream)
    sink.send(event)
    written = stream.getvalue()
    stream.close()
    sink.send(event)

    assert written == '{"type":"job.accepted"}\n'
