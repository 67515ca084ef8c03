"""How hard uploads try."""

from __future__ import annotations

import threading

from receivers import QuickClock

from app_trainer_sdk.transfers.effort import Throttle


def test_a_throttle_holds_back_until_it_is_lifted():
    """A checkpoint's bytes are paced over all connections; at the end of a run they are not."""
    clock, throttle, never = QuickClock(), Throttle(1000.0), threading.Event()
    for _ in range(5):
        throttle.wait(1000, clock, never)
    paced = clock.at
    throttle.lift()
    throttle.wait(1_000_000, clock, never)

    assert 4.0 <= paced <= 5.0
    assert clock.at == paced


def test_a_wish_to_stop_ends_the_wait():
    """And without a rate nobody waits."""
    clock, asked = QuickClock(), threading.Event()
    asked.set()
    Throttle(1.0).wait(1_000_000, clock, asked)

    assert Throttle().wait(1_000_000, clock, threading.Event()) == 0.0
    assert clock.at < 1.0
