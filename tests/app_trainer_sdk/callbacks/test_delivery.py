"""What nobody heard lies on the disk, and is known as such by whoever starts next."""

from __future__ import annotations

from pathlib import Path

from app_trainer_sdk.callbacks.delivery import DELIVERED, DeliveryRecord, waiting_in
from app_trainer_sdk.events import Event, EventLog
from app_trainer_sdk.paths import JobDirectory


def log(layout: JobDirectory, attempt: int = 1) -> EventLog:
    layout.attempt(attempt).mkdir(parents=True, exist_ok=True)
    return EventLog(layout.attempt(attempt), job_id="j", attempt=attempt, instance="i")


def numbers(events: list[Event]) -> list[int]:
    return [event.document["seq"] for event in events]


def test_what_waits_is_what_was_not_settled(tmp_path: Path):
    """Lifecycle in order, of progress the last, byte for byte; a line cut off by a kill settles nothing."""
    layout = JobDirectory(tmp_path)
    record, events = DeliveryRecord(layout), log(layout)
    made = [
        events.add(kind) for kind in ("job.accepted", "job.progress", "job.phase", "job.progress", "job.phase")
    ]
    record.settle(made[0], "heard", 200)
    with (layout.attempt(1) / DELIVERED).open("ab") as file:
        file.write(b'{"seq": 5, "how": "he')
    waiting = record.waiting(1)

    assert numbers(waiting) == [3, 4, 5]
    assert [event.body for event in waiting] == [made[2].body, made[3].body, made[4].body]


def test_progress_older_than_what_was_heard_is_not_said_any_more(tmp_path: Path):
    """J4: the receiver knows better by now."""
    layout = JobDirectory(tmp_path)
    record, events = DeliveryRecord(layout), log(layout)
    events.add("job.progress")
    record.settle(events.add("job.phase"), "heard", 200)

    assert record.waiting(1) == []


def test_after_the_terminal_event_nothing_is_said(tmp_path: Path):
    """J4: what was refused before stays on the disk; a terminal event that was refused is tried again."""
    layout = JobDirectory(tmp_path)
    record, events = DeliveryRecord(layout), log(layout)
    first, end = events.add("job.accepted"), events.add("job.failed", code=70)
    record.settle(first, "refused", 400)
    record.settle(end, "refused", 422)

    assert numbers(record.waiting(1)) == [2]
    assert record.heard() == 0
    record.settle(end, "heard", 200)
    assert (record.waiting(1), record.heard()) == ([], 1)


def test_of_a_fenced_process_nothing_is_said(tmp_path: Path):
    """Another process speaks for the job; one that takes over here in its turn is heard."""
    layout = JobDirectory(tmp_path)
    record, events = DeliveryRecord(layout), log(layout)
    record.settle(events.add("job.accepted"), "fenced", 409)
    events.add("job.interrupted", code=76)
    assert record.waiting(1) == []

    again = EventLog(layout.attempt(1), job_id="j", attempt=1, instance="another")
    end = again.add("job.failed", code=70)
    assert record.waiting(1) == [end]


def test_a_terminal_event_that_the_log_lost_is_still_said(tmp_path: Path):
    """It is on the disk before the log; a kill in between costs nothing."""
    layout = JobDirectory(tmp_path)
    events = log(layout)
    events.add("job.accepted")
    kept = (layout.attempt(1) / "events.jsonl").read_bytes()
    end = events.add("job.failed", code=70)
    (layout.attempt(1) / "events.jsonl").write_bytes(kept)

    assert [event.body for event in waiting_in(layout.attempt(1))][1:] == [end.body]


def test_the_backlog_has_attempts_that_somebody_was_to_hear_of(tmp_path: Path):
    """In order of attempts; one without callbacks is nobody's backlog unless everything is asked for."""
    layout = JobDirectory(tmp_path)
    record = DeliveryRecord(layout)
    for attempt in (10, 2, 1):
        log(layout, attempt).add("job.accepted")
        if attempt != 1:
            record.begin(attempt)

    assert [event.id for event in record.backlog()] == ["j.2.1", "j.10.1"]
    record.settle(record.waiting(10)[0], "refused", 400)
    assert [event.id for event in record.backlog()] == ["j.2.1"]
    assert [event.id for event in record.backlog(everything=True)] == ["j.1.1", "j.2.1"]


def test_of_attempts_before_one_that_was_heard_nothing_is_said(tmp_path: Path):
    """J4 over starts: progress that the next start's took the place of does not come after that start's end."""
    layout = JobDirectory(tmp_path)
    record = DeliveryRecord(layout)
    for attempt in (1, 2):
        log(layout, attempt).add("job.progress")
        record.begin(attempt)
    record.settle(log(layout, 2).add("job.succeeded", code=0), "heard", 200)

    assert record.backlog() == []
