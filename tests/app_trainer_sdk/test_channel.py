"""The line between supervisor and rank: facts one way without waiting, wishes to stop the other way."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_trainer_sdk.channel import RankChannel, StopToken, read_messages
from app_trainer_sdk.errors import ExitCode, StopRequested

REASONS = st.sampled_from(["interrupted", "deadline", "canceled", "peer"])


class Ends:
    """Both ends of a channel, with what happened at the rank's."""

    def __init__(self) -> None:
        self.supervisor, self._rank = socket.socketpair()
        self.token = StopToken()
        self.left = threading.Event()
        self.channel = RankChannel(self._rank, self.token, leave=self.left.set)

    def ask(self, document: dict[str, Any]) -> None:
        self.supervisor.sendall(json.dumps(document).encode() + b"\n")


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A channel whose ends are closed after the test."""
    both = Ends()
    yield both
    both.supervisor.close()
    both.channel.close()


def until(true: Any, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(true())


def test_nobody_asked():
    """Checking is free until somebody asks."""
    token = StopToken()
    token.check()

    assert token.asked is None


def test_a_wish_is_raised_wherever_it_is_checked():
    """Each check raises, with the exit code of the reason."""
    token = StopToken()
    token.request("deadline")
    for _ in range(2):
        with pytest.raises(StopRequested) as caught:
            token.check()

    assert (caught.value.code, caught.value.checkpoint) == (ExitCode.DEADLINE, True)


@given(st.lists(st.tuples(REASONS, st.booleans()), min_size=1, max_size=5))
def test_the_first_reason_stands_and_a_checkpoint_once_given_up_stays_so(wishes: list[tuple[Any, bool]]):
    """Whatever comes later may only take the checkpoint away."""
    token = StopToken()
    for reason, checkpoint in wishes:
        token.request(reason, checkpoint=checkpoint)

    assert token.asked is not None
    assert wishes[0][0] == token.asked.reason
    assert all(checkpoint for _, checkpoint in wishes) == token.asked.checkpoint


def test_saving_goes_on_unless_the_checkpoint_is_given_up():
    """While a checkpoint is written the wish that caused it is not raised again; giving it up is."""
    token = StopToken()
    token.request("interrupted")
    token.begin_saving()
    token.check()
    token.request("canceled", checkpoint=False)
    with pytest.raises(StopRequested) as caught:
        token.check()

    assert caught.value.reason == "interrupted"


def test_what_is_said_arrives_in_order(ends: Ends):
    """Every fact, one JSON line each."""
    for number in range(100):
        ends.channel.say("progress", step=number)
    ends.channel.close()
    heard = list(read_messages(ends.supervisor))

    assert [{"kind": "progress", "step": number} for number in range(100)] == heard
    assert not ends.left.is_set()


def test_whatever_a_trainer_says_is_taken(ends: Ends):
    """Reporting never raises into training: scalars of other libraries are numbers, other things text."""
    ends.channel.say("work", done=numpy.int64(3), loss=numpy.float32("nan"), where=ends.token.__class__)
    ends.channel.close()
    (heard,) = read_messages(ends.supervisor)

    assert heard["done"] == 3
    assert heard["loss"] != heard["loss"]
    assert "StopToken" in heard["where"]


def test_saying_never_waits_for_a_supervisor_that_does_not_read(ends: Ends):
    """CASES J2: far more than a socket holds is taken at once; closing is bounded."""

    def say() -> None:
        for _ in range(1000):
            ends.channel.say("progress", text="x" * 2000)

    speaker = threading.Thread(target=say, daemon=True)
    speaker.start()
    speaker.join(60.0)

    assert not speaker.is_alive()


def test_a_stop_request_reaches_the_token(ends: Ends):
    """Pieces of a line make one request; other messages are passed over."""
    ends.ask({"kind": "hello"})
    ends.supervisor.sendall(b'{"kind": "stop", "reason": "canc')
    time.sleep(0.02)
    ends.supervisor.sendall(b'eled", "checkpoint": false}\n')

    assert until(lambda: ends.token.asked is not None)
    assert ends.token.asked is not None
    assert (ends.token.asked.reason, ends.token.asked.checkpoint) == ("canceled", False)


def test_a_supervisor_that_is_gone_makes_the_rank_leave(ends: Ends):
    """End of file means nobody would hear of anything done from here on."""
    ends.supervisor.close()

    assert ends.left.wait(60.0)
    ends.channel.say("progress", step=1)  # whoever still speaks meanwhile is not disturbed


def test_closing_lets_the_supervisor_see_the_end_at_once(ends: Ends):
    """A thread that still reads does not keep the line open."""
    started = time.monotonic()
    ends.supervisor.settimeout(60.0)
    ends.channel.close()

    assert not list(read_messages(ends.supervisor))
    assert time.monotonic() - started < 60.0
    assert not ends.left.is_set()


def test_a_rank_without_supervisor_speaks_to_nobody():
    """A trainer run in process has no line: nothing happens, nothing fails."""
    before, token = set(threading.enumerate()), StopToken()
    channel = RankChannel(None, token)
    channel.say("progress", step=1)
    channel.close()

    assert not [each for each in set(threading.enumerate()) - before if each.name.startswith("channel")]
    assert token.asked is None
