"""Wishes to stop: which one stands, when the grace is over, and deadlines as an environment writes them."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
from process_helpers import Clock

from app_trainer_sdk import stops as module
from app_trainer_sdk.errors import BadJob, ExitCode, StopRequested
from app_trainer_sdk.signals import WISHES, held_back
from app_trainer_sdk.stops import Stops, seconds_to_deadline


@pytest.fixture(autouse=True)
def nobody_else_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline and no grace of the environment."""
    for name in ("MAX_RUNTIME_SECONDS", "DEADLINE", "GRACE_SECONDS"):
        monkeypatch.delenv("APP_TRAINER_" + name, raising=False)


def heard(*acts: Any, apart: float = 0.0, clock: Clock | None = None) -> tuple[Stops, list[tuple[str, bool]]]:
    """What was told of these signals and orders, so many seconds apart."""
    told: list[tuple[str, bool]] = []
    clock = clock or Clock()
    stops = Stops(lambda wish: told.append((wish.reason, wish.checkpoint)), clock=clock)
    with stops.listening():
        for act in acts:
            os.kill(os.getpid(), act) if isinstance(act, int) else stops.order(act)
            stops.look()  # as the next tick does
            clock.go(apart)
    return stops, told


@pytest.mark.parametrize(
    ("acts", "told"),
    [
        ([signal.SIGTERM], [("interrupted", True)]),
        ([signal.SIGINT, signal.SIGTERM], [("interrupted", True)]),
        (["cancel"], [("canceled", True)]),
        (["gone", signal.SIGTERM], [("canceled", True)]),
        (["fenced"], [("fenced", False)]),
        ([signal.SIGTERM, "cancel"], [("interrupted", True)]),
        ([signal.SIGTERM, "fenced"], [("interrupted", True), ("fenced", False)]),
        (["fenced", "cancel"], [("fenced", False)]),
    ],
)
def test_the_first_wish_stands(acts: list[Any], told: list[tuple[str, bool]]):
    """A6: but for a newer attempt, which goes before all else."""
    stops, found = heard(*acts)

    assert found == told
    with pytest.raises(StopRequested):
        stops.check()


def test_a_second_signal_later():
    """A6: it takes the checkpoint away and leaves the reason; a third one changes nothing."""
    _, found = heard("cancel", signal.SIGTERM, signal.SIGTERM, apart=module.SECOND_SIGNAL_SECONDS)

    assert found == [("canceled", True), ("canceled", False)]


@pytest.mark.parametrize("number", WISHES)
def test_every_end_that_can_be_heard_is_a_wish(number: int):
    """A terminal that closes, a batch system's notice: none of them ends the supervisor untold."""
    assert heard(number)[1] == [("interrupted", True)]


def test_a_terminal_that_nobody_needs():
    """``nohup``: SIGHUP that was ignored before stays so."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert heard(signal.SIGHUP)[1] == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_after_the_end_changes_no_exit_code():
    """Where signals waited for somebody to listen, the process is the attempt's own, and its end was told."""
    before = {number: signal.getsignal(number) for number in WISHES}
    try:
        with held_back():
            heard(signal.SIGTERM)

            assert {signal.getsignal(number) for number in WISHES} == {signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_handlers_are_put_back():
    """Who used signals before has them again."""
    before = [signal.getsignal(number) for number in (*WISHES, signal.SIGALRM)]
    heard(signal.SIGTERM)

    assert before == [signal.getsignal(number) for number in (*WISHES, signal.SIGALRM)]
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0.0


def test_an_order_from_another_thread_interrupts_a_wait():
    """L4: within a tick, whatever the main thread waits for."""
    stops = Stops(lambda wish: None)
    started = time.monotonic()
    threading.Timer(0.05, stops.order, ("cancel",)).start()
    with stops.listening(), pytest.raises(StopRequested) as caught, stops.interruptible():
        time.sleep(60)

    assert caught.value.code is ExitCode.CANCELED
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(("grace", "reserve"), [("10", 2.0), ("100", 5.0)])
def test_the_grace(monkeypatch: pytest.MonkeyPatch, grace: str, reserve: float):
    """A6: kept are two seconds or 5 %; for the last words what is left of the grace, less a second."""
    monkeypatch.setenv("APP_TRAINER_GRACE_SECONDS", grace)
    clock = Clock()
    began = clock.now
    stops, _ = heard(signal.SIGTERM, clock=clock)

    for clock.now, over in (
        (began + float(grace) - reserve, False),
        (began + float(grace) - reserve + 0.1, True),
    ):
        assert stops.overdue is over
    clock.now = began + float(grace) - 3
    assert stops.seconds_to_tell(15.0) == pytest.approx(2.0)
    clock.now = began + float(grace) + 3
    assert stops.seconds_to_tell(15.0) == 0.0


def test_what_the_grace_was_spent_on():
    """A6: measured, as seconds and as shares; before anybody asked nothing is booked."""
    clock = Clock()
    stops = Stops(lambda wish: None, clock=clock)
    with stops.listening(), stops.spending("checkpoint"):
        clock.go(5.0)
        os.kill(os.getpid(), signal.SIGTERM)
        clock.go(3.0)
    document = stops.document()

    assert document is not None
    assert document["seconds"] == {"checkpoint": 3.0, "upload": 0.0, "terminal": 0.0, "kill": 0.0}
    assert document["share_of_grace"]["checkpoint"] == 0.1
    assert Stops(lambda wish: None).document() is None


def test_deadlines(monkeypatch: pytest.MonkeyPatch):
    """A1: the nearer one of the two; a moment in UTC unless it says otherwise."""
    assert seconds_to_deadline() == float("inf")
    monkeypatch.setenv("APP_TRAINER_MAX_RUNTIME_SECONDS", "3600")
    assert seconds_to_deadline() == 3600
    monkeypatch.setattr(module.time, "time", lambda: 1_790_000_000.0)
    for text, left in (
        ("1790000060", 60), ("2026-09-21T14:14:00Z", 40), ("2026-09-21T14:14:00", 40),
        ("2026-09-21T16:14:00+02:00", 40), ("2020-01-01T00:00:00Z", -212_163_200),
    ):  # fmt: skip
        monkeypatch.setenv("APP_TRAINER_DEADLINE", text)
        assert seconds_to_deadline() == left


@pytest.mark.parametrize(
    ("name", "text"),
    [("MAX_RUNTIME_SECONDS", "soon"), ("MAX_RUNTIME_SECONDS", "0"), ("MAX_RUNTIME_SECONDS", "nan"),
     ("DEADLINE", "tomorrow"), ("DEADLINE", "inf")],
)  # fmt: skip
def test_a_deadline_that_is_none(monkeypatch: pytest.MonkeyPatch, name: str, text: str):
    """A1: refused with the variable: a run that nobody ends costs money."""
    monkeypatch.setenv("APP_TRAINER_" + name, text)
    with pytest.raises(BadJob, match=f"APP_TRAINER_{name} is '{text}'"):
        Stops(lambda wish: None)


@pytest.mark.parametrize(
    ("acts", "seconds"),
    [([], float("inf")), ([signal.SIGTERM], 9.0), (["cancel"], 0.0), (["fenced"], 0.0)],
)
def test_uploads_have_their_share_of_the_grace(acts: list[Any], seconds: float):
    """A6: 30 % of 30 s; without a wish as long as they take; nothing for a job that nobody wants."""
    stops, _ = heard(*acts)

    assert stops.seconds_to_upload() == seconds


def test_the_share_of_uploads_ends_with_the_grace(monkeypatch: pytest.MonkeyPatch):
    """What the checkpoint took is not there any more: the kill and the last words come first."""
    monkeypatch.setenv("APP_TRAINER_GRACE_SECONDS", "2.5")
    stops, _ = heard(signal.SIGTERM, apart=0.3)

    assert stops.seconds_to_upload() == 0.0
