"""Pauses spread, end when somebody wants to stop, and are as long as a server asks."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime

import pytest

from app_trainer_sdk.transfers.pauses import RealClock, full_jitter, patiently, retry_after

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None), ("", None), ("7", 7.0), (" 0 ", 0.0), ("soon", None), ("-1", None), ("\u0663", None),
        ("9" * 40, 999999999999.0),
        ("Mon, 30 Nov 2026 12:00:30 GMT", 30.0), ("Mon, 30 Nov 2026 11:00:00 GMT", 0.0),
    ],
)  # fmt: skip
def test_retry_after(value: str | None, seconds: float | None):
    """A number or a date; what is neither asks for nothing."""
    assert retry_after(value, now=NOW) == seconds


def test_jitter_is_bounded_and_spreads():
    """Anything from nothing to a bound that doubles and ends at half a minute."""
    chance = random.Random(0)
    for tries, most in ((0, 0.5), (3, 4.0), (1000, 30.0)):
        drawn = [full_jitter(tries, chance) for _ in range(200)]

        assert 0.0 <= min(drawn) < 0.1 * most
        assert 0.9 * most < max(drawn) <= most


def test_a_pause_ends_with_its_event():
    """Whether somebody wants to stop is the answer."""
    event = threading.Event()

    assert RealClock().wait(event, 0.0) is False
    event.set()
    assert RealClock().wait(event, 60.0) is True


def test_a_wish_to_stop_is_noticed_in_a_call_that_blocks():
    """The call is left behind; answers and errors of one that ends come through."""
    never = threading.Event()

    def check() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        patiently(lambda: never.wait(10.0), check)
    never.set()

    assert patiently(lambda: 3, lambda: None) == 3
    with pytest.raises(ZeroDivisionError):
        patiently(lambda: 1 / 0, lambda: None)
