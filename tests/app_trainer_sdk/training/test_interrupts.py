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
    found.askers, found.noticed = [], threading.Event()
    interrupts.install(found)
    yield found
    found.noticed.set()
    for each in found.askers:
        each.join()
    interrupts._token = None
    signal.signal(interrupts.SIGNAL, before)


def ask(token, *, nudges=1000, **wish):
    """As another thread does: once, with nudges until somebody has noticed, since one may come in between."""

    def work():
        token.request("interrupted", **wish)
        for _ in range(nudges):
            interrupts.nudge()
            if token.noticed.wait(0.05):
                return

    token.askers.append(threading.Thread(target=work))
    token.askers[-1].start()
    return token.askers[-1]


def asked_and_asleep(token, **wish):
    ask(token, **wish)
    time.sleep(120)


def test_a_long_sleep(token):
    """L4: raised at once, also from another thread, however deep the places are nested."""
    started = time.monotonic()
    with pytest.raises(StopRequested), interruptible(), interruptible():
        asked_and_asleep(token)

    assert time.monotonic() - started < 60


def test_cleaning_up_is_not_interrupted(token):
    """What follows the wish may take its time, though the wish is repeated."""
    cleaned = []

    def work():
        try:
            asked_and_asleep(token)
        finally:
            cleaned.extend(time.sleep(0.02) for _ in range(20))

    with pytest.raises(StopRequested), interruptible():
        work()

    assert len(cleaned) == 20


@pytest.mark.parametrize("really", [False, None])
def test_where_it_would_lose_something(token, really):
    """Outside, and where others would be left waiting, the wish waits until somebody looks."""
    with interruptible(really=False) if really is False else interruptible():
        if really is False:
            ask(token, nudges=3).join()
    if really is None:
        ask(token, nudges=3).join()
    with pytest.raises(StopRequested):
        token.check()


def test_while_a_checkpoint_is_written(token):
    """Saving goes on when asked to stop, and ends when asked to stop without a checkpoint."""
    token.request("interrupted")
    token.begin_saving()
    with interruptible():
        ask(token, nudges=3).join()
    with pytest.raises(StopRequested), interruptible():
        asked_and_asleep(token, checkpoint=False)


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
