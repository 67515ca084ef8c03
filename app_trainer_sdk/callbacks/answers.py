"""Owns what an answer to an event means, as one pure function: heard, again, refused, or an order.

Two modes. To ``notify`` any webhook will do, and nothing it answers can stop a run. In ``control`` the answer
is a document, and may cancel or fence. This file must not know how anything is sent or stopped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from app_trainer_sdk.callbacks.post import Answer
from app_trainer_sdk.events import Event
from app_trainer_sdk.files import json_object

Mode = Literal["notify", "control"]
#: What a control plane may ask: end this job; there is no such job any more; another start took it over, so end
#: and hand over nothing.
Order = Literal["cancel", "gone", "fenced"]
RETRIED = frozenset({408, 425, 429, *range(500, 600)})
LONGEST_INTERVAL = 3600.0


@dataclass(frozen=True)
class Verdict:
    """What follows from an answer.

    Attributes:
        what: ``heard``; ``again`` later; ``refused`` for good, so go on with the next; ``smaller``: again,
            with less in it; ``unknown``: credentials were not accepted; ``stop``: say nothing more to it;
            ``fenced``: say nothing more of this attempt.
        order: what is to be obeyed.
        interval: least seconds between progress events from now on.
        next_sequence: least sequence number of the next event.
    """

    what: Literal["heard", "again", "refused", "smaller", "unknown", "stop", "fenced"]
    order: Order | None = None
    interval: float | None = None
    next_sequence: int | None = None


def judge(mode: Mode, event: Event, answer: Answer) -> Verdict:
    """What follows from the answer to an event."""
    status = answer.status
    if status == 0 or status in RETRIED:
        return Verdict("again")
    if 200 <= status < 300:
        return Verdict("heard") if mode == "notify" else _acknowledged(event, answer)
    if status in (401, 403):
        return Verdict("unknown")
    if status == 413:
        return Verdict("smaller")
    if status in (409, 410):
        return Verdict("stop") if mode == "notify" else _over(event, answer)
    return Verdict("refused")


def _acknowledged(event: Event, answer: Answer) -> Verdict:
    """Only a body that acknowledges this event does: a proxy's friendly page is no acknowledgement."""
    body = json_object(answer.body)
    sequence = int(event.document["seq"])
    if not _is_whole(body.get("ack")) or body["ack"] < sequence:
        return Verdict("again")
    interval, following = body.get("min_interval_s"), body.get("next_seq")
    return Verdict(
        "heard",
        order="cancel" if body.get("cancel") is True else None,
        interval=min(float(interval), LONGEST_INTERVAL) if _is_number(interval) and interval >= 0 else None,
        next_sequence=following if _is_whole(following) else None,
    )


def _over(event: Event, answer: Answer) -> Verdict:
    if answer.status == 410:
        return Verdict("stop", order="gone")
    current = json_object(answer.body).get("attempt")
    if not _is_whole(current) or current < int(event.document["attempt"]):
        return Verdict("refused")  # somebody's 409, not the control plane's word on who speaks for the job
    return Verdict("fenced", order="fenced")


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
