"""Owns what a control plane makes of an event: taken or not and why, what the job's state is, what to answer.

Pure: a record and an event in, a new record and an answer out. A control plane keeps the record where it keeps
jobs (``Record.document`` is JSON) and calls :func:`receive` in one transaction for each delivery; deliveries
may be late, twice or out of order. This file must not know HTTP servers, files or clocks.

::

    pending ──► running ──► succeeded | failed | canceled     terminal: nothing is taken any more
                 ▲    │
                 └────┴── interrupted                         another start goes on
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

State = Literal["pending", "running", "interrupted", "succeeded", "failed", "canceled"]
TERMINAL: Mapping[str, State] = {
    "job.succeeded": "succeeded", "job.failed": "failed", "job.canceled": "canceled"
}  # fmt: skip
ENVELOPE = {"id": str, "job_id": str, "attempt": int, "instance": str, "seq": int, "type": str}
#: Numbers below the highest that were not heard yet; older ones than these are taken for heard.
MOST_GAPS = 256
SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True)
class Record:
    """What a control plane knows of one job.

    Attributes:
        job_id: the job.
        gpus: how many the job has, for its cost.
        price: of one GPU for an hour.
        state: where the job is.
        attempt: the newest start that is known, 0 before any.
        instance: the process that speaks for it.
        fenced: processes of the same attempt that another one replaced.
        highest: highest sequence number of this instance.
        next_sequence: least number that is free in this attempt.
        gaps: lower numbers that were not heard.
        over: whether this instance has said that it ends.
        seconds: by ``attempt/instance``, how long each start was at work as far as it said so.
        cancel: whether the job is to end.
        terminal: id of the terminal event.
        code: exit code in it.
        cost: price of all GPU seconds, stamped with the terminal event and never changed.
        output_bytes: size of the outputs, from the terminal event.
        progress: the last progress.
    """

    job_id: str
    gpus: int = 1
    price: float = 0.0
    state: State = "pending"
    attempt: int = 0
    instance: str = ""
    fenced: tuple[str, ...] = ()
    highest: int = 0
    next_sequence: int = 1
    gaps: tuple[int, ...] = ()
    over: bool = False
    seconds: Mapping[str, float] = field(default_factory=dict)
    cancel: bool = False
    terminal: str = ""
    code: int | None = None
    cost: float | None = None
    output_bytes: int | None = None
    progress: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """The record as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The record again."""
        return cls(**{**document, "fenced": tuple(document["fenced"]), "gaps": tuple(document["gaps"])})


@dataclass(frozen=True)
class Decision:
    """What became of a delivery.

    Attributes:
        record: what is known now.
        accepted: whether the event is new and counts.
        reason: why not.
        status: the HTTP status to answer.
        answer: the document to answer.
        late: accepted, but something newer was heard before, so the state did not change.
    """

    record: Record
    accepted: bool
    reason: str
    status: int
    answer: dict[str, Any]
    late: bool = False


def receive(record: Record, body: bytes | Mapping[str, Any], *, min_interval_s: float = 0.0) -> Decision:
    """Take an event of the record's job, or say why not.

    Args:
        record: what is known of the job.
        body: the request's body, or the event in it.
        min_interval_s: least seconds between progress that the answer asks for.
    """
    event, wrong = _read(body, record.job_id)
    if event is None:
        return Decision(record, False, wrong, 422, {"error": wrong})
    if record.terminal:
        return _after_the_end(record, event, min_interval_s)
    attempt, instance, sequence = event["attempt"], event["instance"], event["seq"]
    if attempt < record.attempt:
        return _fenced(record, f"attempt {attempt} is older than {record.attempt}")
    if attempt == record.attempt and instance in record.fenced:
        return _fenced(record, f"another process has taken attempt {attempt} over")
    if (attempt, instance) != (record.attempt, record.instance):
        record = _taken_over(record, attempt, instance)
    elif sequence <= record.highest and sequence not in record.gaps:
        return _ignored(record, event, f"event {sequence} was heard before", min_interval_s)
    late = sequence < record.highest
    if record.over and not late:
        return _ignored(record, event, "this start has said that it ends", min_interval_s)
    record = _noted(record, event)
    if not late:
        record = _applied(record, event)
    elif event["type"] in TERMINAL:
        return _ignored(record, event, "nothing can come after a terminal event", min_interval_s)
    return Decision(record, True, "", 200, _answer(record, record.highest, min_interval_s), late=late)


def expect(record: Record, attempt: int) -> Record:
    """A control plane starts another attempt: earlier ones are fenced at once, and a failed job is open again.

    A ``ValueError`` when the attempt is not newer, or the job succeeded or was canceled.
    """
    if attempt <= record.attempt or record.state in ("succeeded", "canceled"):
        raise ValueError(f"attempt {attempt} of a job that is {record.state} after attempt {record.attempt}")
    opened = dataclasses.replace(record, terminal="", code=None, cost=None, output_bytes=None)
    return dataclasses.replace(_taken_over(opened, attempt, ""), state="pending")


def ask_to_cancel(record: Record) -> Record:
    """The job is to end: every answer says so from now on."""
    return dataclasses.replace(record, cancel=not record.terminal)


def _read(body: bytes | Mapping[str, Any], job_id: str) -> tuple[dict[str, Any] | None, str]:
    """The event, or what is wrong with it."""
    try:
        event = dict(body) if isinstance(body, Mapping) else json.loads(body, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None, "not JSON"
    if not isinstance(event, dict):
        return None, "not an object"
    for name, kind in {
        "id": str,
        "job_id": str,
        "attempt": int,
        "instance": str,
        "seq": int,
        "type": str,
    }.items():
        if not isinstance(event.get(name), kind) or isinstance(event[name], bool):
            return None, f"/{name} is missing or of another type"
    if event.get("v") != 1 or event["attempt"] < 1 or event["seq"] < 1 or not event["instance"]:
        return None, "not an event of version 1"
    if event["job_id"] != job_id:
        return None, f"an event of job {event['job_id']}, not of {job_id}"
    if event["id"] != f"{job_id}.{event['attempt']}.{event['seq']}":
        return None, "an id that is not job.attempt.seq"
    state = TERMINAL.get(event["type"])
    if state and (event.get("status") != state or (event.get("code") == 0) != (state == "succeeded")):
        return None, f"{event['type']} with status {event.get('status')} and code {event.get('code')}"
    return event, ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _taken_over(record: Record, attempt: int, instance: str) -> Record:
    """Another process speaks from now on; those of the same attempt before it are fenced."""
    same = attempt == record.attempt
    replaced = tuple(each for each in (*record.fenced, record.instance) if each) if same else ()
    return dataclasses.replace(
        record, attempt=attempt, instance=instance, fenced=replaced, highest=0, gaps=(), over=False,
        next_sequence=record.next_sequence if same else 1,
    )  # fmt: skip


def _noted(record: Record, event: Mapping[str, Any]) -> Record:
    """The event was heard: numbers, gaps, and how long its start has been at work."""
    sequence = event["seq"]
    if sequence > record.highest:
        gaps = (*record.gaps, *range(max(record.highest + 1, sequence - MOST_GAPS), sequence))[-MOST_GAPS:]
    else:
        gaps = tuple(each for each in record.gaps if each != sequence)
    start, seconds = f"{event['attempt']}/{event['instance']}", event.get("uptime_s")
    known = record.seconds.get(start, 0.0)
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and math.isfinite(seconds):
        known = max(known, float(seconds))
    return dataclasses.replace(
        record, highest=max(record.highest, sequence), gaps=gaps, seconds={**record.seconds, start: known},
        next_sequence=max(record.next_sequence, sequence + 1),
    )  # fmt: skip


def _applied(record: Record, event: Mapping[str, Any]) -> Record:
    """The newest event decides the state."""
    state = TERMINAL.get(event["type"])
    record = dataclasses.replace(record, progress=event.get("progress") or record.progress)
    if state is not None:
        outputs = event.get("outputs")
        size = outputs.get("bytes") if isinstance(outputs, Mapping) else None
        return dataclasses.replace(
            record, state=state, terminal=event["id"], code=event.get("code"), over=True, output_bytes=size,
            cost=round(sum(record.seconds.values()) * record.gpus * record.price / SECONDS_AN_HOUR, 6),
        )  # fmt: skip
    if event["type"] == "job.interrupted":
        return dataclasses.replace(record, state="interrupted", over=True)
    return dataclasses.replace(record, state="running")


def _after_the_end(record: Record, event: Mapping[str, Any], interval: float) -> Decision:
    if (event["attempt"], event["instance"]) == (record.attempt, record.instance):
        why = "was heard before" if event["id"] == record.terminal else f"comes after {record.terminal}"
        return _ignored(record, event, f"event {event['seq']} {why}", interval)
    if event["attempt"] <= record.attempt:
        return _fenced(record, f"the job has ended with {record.terminal}")
    why = f"the job is {record.state}; nobody expects attempt {event['attempt']}"
    return Decision(record, False, why, 410, {"error": why})


def _fenced(record: Record, reason: str) -> Decision:
    return Decision(record, False, reason, 409, _answer(record, record.highest, 0.0))


def _ignored(record: Record, event: Mapping[str, Any], reason: str, interval: float) -> Decision:
    """Not taken, and acknowledged: its sender need not try again."""
    answer = _answer(record, max(record.highest, event["seq"]), interval)
    return Decision(record, False, reason, 200, answer)


def _answer(record: Record, acknowledged: int, interval: float) -> dict[str, Any]:
    return {
        "ack": acknowledged, "attempt": record.attempt, "next_seq": record.next_sequence,
        "cancel": record.cancel, "min_interval_s": interval,
    }  # fmt: skip
