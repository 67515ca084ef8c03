"""A wish to stop in the middle of something that never looks for one."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from app_trainer_sdk.channel import StopToken
from app_trainer_sdk.errors import StopRequested
from app_trainer_sdk.training import interrupts
from app_trainer_sdk.training.interrupts import interruptible


@pytest.fixture
def token():
    """A token whose wishes interrupt this thread; nothing of it stays."""
    before = signal.getsignal(interrupts.SIGNAL)
    found = StopToken()
    found.askers = []
    interrupts.install(found)
    yield found
    for each in found.askers:
        each.join()
    interrupts._token = None
    signal.signal(interrupts.SIGNAL, before)


def ask_soon(token, **wish):
    def ask():
        time.sleep(0.1)
        token.request("interrupted", **wish)
        for _ in range(5):
            interrupts.nudge()
            time.sleep(0.1)

    token.askers.append(threading.Thread(target=ask))
    token.askers[-1].start()


def test_a_long_sleep(token):
    """L4: raised at once, also from another thread, however deep the places are nested."""
    ask_soon(token)
    started = time.monotonic()
    with pytest.raises(StopRequested), interruptible(), interruptible():
        time.sleep(20)

    assert time.monotonic() - started < 5


def test_cleaning_up_is_not_interrupted(token):
    """What follows the wish may take its time, though the wish is repeated."""
    cleaned = []

    def work():
        try:
            time.sleep(20)
        finally:
            cleaned.extend(time.sleep(0.02) for _ in range(20))

    ask_soon(token)
    with pytest.raises(StopRequested), interruptible():
        work()

    assert len(cleaned) == 20


@pytest.mark.parametrize("really", [False, None])
def test_where_it_would_lose_something(token, really):
    """Outside, and where others would be left waiting, the wish waits until somebody looks."""
    ask_soon(token)
    with interruptible(really=False) if really is False else interruptible():
        pass
    time.sleep(0.3)
    with pytest.raises(StopRequested):
        token.check()


def test_while_a_checkpoint_is_written(token):
    """Saving goes on when asked to stop, and ends when asked to stop without a checkpoint."""
    token.request("interrupted")
    token.begin_saving()
    ask_soon(token)
    with interruptible():
        time.sleep(0.3)
    ask_soon(token, checkpoint=False)
    with pytest.raises(StopRequested), interruptible():
        time.sleep(20)


def test_an_earlier_wish(token):
    """Who enters after the wish does not begin."""
    token.request("canceled")
    with pytest.raises(StopRequested), interruptible():
        raise AssertionError("begun")


def test_another_thread(token):
    """Only the main thread gets signals: others look for themselves."""
    done = []

    def work():
        with interruptible():
            done.append(interrupts._depth)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert done == [0]


def test_without_a_token():
    """A trainer run in process, as in an author's tests, has nobody who asks."""
    with interruptible():
        assert interrupts._depth == 0
