"""What each answer means in each mode, and that a plain webhook can stop nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app_trainer_sdk.callbacks.answers import Mode, judge
from app_trainer_sdk.callbacks.post import Answer
from app_trainer_sdk.events import Event, encode_event

EVENT: Event = encode_event({"id": "j.2.17", "attempt": 2, "instance": "me", "seq": 17, "type": "job.progress"})
MODES: tuple[Mode, ...] = ("notify", "control")
ACK = {"ack": 17, "attempt": 2, "next_seq": 18, "cancel": False, "min_interval_s": 5}


def answer(status: int, document: Any = None) -> Answer:
    return Answer(status, b"" if document is None else json.dumps(document).encode())


@pytest.mark.parametrize(
    "status", [*range(200, 208), 301, 400, 401, 403, 404, 408, 409, 410, 413, 422, 429, 503, 0]
)
def test_a_plain_webhook_never_stops_anything(status: int):
    """CASES J2, A4: whatever it answers, even what a control plane would say, there is no order."""
    verdict = judge(
        "notify", EVENT, answer(status, {**ACK, "attempt": 9, "cancel": True, "min_interval_s": 99})
    )

    assert (verdict.order, verdict.interval, verdict.next_sequence) == (None, None, None)


@pytest.mark.parametrize(
    ("mode", "status", "document", "what", "order"),
    [
        ("notify", 204, None, "heard", None),
        ("notify", 409, None, "stop", None),
        ("notify", 410, None, "stop", None),
        ("control", 200, ACK, "heard", None),
        ("control", 200, {**ACK, "cancel": True}, "heard", "cancel"),
        ("control", 200, {**ACK, "cancel": "true"}, "heard", None),
        ("control", 200, {**ACK, "ack": 16}, "again", None),
        ("control", 200, "<html>", "again", None),
        ("control", 204, None, "again", None),
        ("control", 409, {**ACK, "attempt": 3}, "fenced", "fenced"),
        ("control", 409, ACK, "fenced", "fenced"),
        ("control", 409, {**ACK, "attempt": 1}, "refused", None),
        ("control", 409, None, "refused", None),
        ("control", 410, None, "stop", "gone"),
        *((mode, status, None, "again", None) for mode in MODES for status in (0, 408, 425, 429, 500, 503)),
        *((mode, status, None, "refused", None) for mode in MODES for status in (302, 400, 404, 422)),
        *((mode, 413, None, "smaller", None) for mode in MODES),
        *((mode, status, None, "unknown", None) for mode in MODES for status in (401, 403)),
    ],
)  # fmt: skip
def test_the_table_of_answers(mode: Mode, status: int, document: Any, what: str, order: str | None):
    """A4, line for line. In control mode only a body that acknowledges this event is an acknowledgement."""
    verdict = judge(mode, EVENT, answer(status, document))

    assert (verdict.what, verdict.order) == (what, order)


def test_what_else_an_acknowledgement_says():
    """Interval and next number are taken when they are numbers, within reason."""
    taken = judge("control", EVENT, answer(200, ACK))
    odd = judge("control", EVENT, answer(200, {**ACK, "min_interval_s": -1, "next_seq": "18"}))
    huge = judge("control", EVENT, answer(200, {**ACK, "min_interval_s": 1e9}))

    assert (taken.interval, taken.next_sequence) == (5.0, 18)
    assert (odd.what, odd.interval, odd.next_sequence) == ("heard", None, None)
    assert huge.interval == 3600.0
