"""What the listener knows survives it, and it misbehaves exactly as told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk.listener.desk import DROPPED, SILENT, Desk, Fault


def body(number: int, kind: str = "job.progress", *, attempt: int = 1, **facts: Any) -> bytes:
    event = {
        "v": 1, "id": f"j.{attempt}.{number}", "job_id": "j", "attempt": attempt, "instance": f"i{attempt}",
        "seq": number, "type": kind, "uptime_s": 36.0, **facts,
    }  # fmt: skip
    return json.dumps(event).encode()


def test_a_listener_that_was_killed_forgets_nothing(tmp_path: Path):
    """What it accepted it knows again, the cost too; what it ignored is not kept."""
    desk = Desk(tmp_path, gpus=2, price=50.0)
    failed = body(3, "job.failed", status="failed", code=70)
    for each in (body(1), body(2), body(2), failed, body(1, attempt=2), b"no event"):
        desk.hear(each)
    again = Desk(tmp_path, gpus=2, price=50.0)

    assert again.jobs() == desk.jobs()
    assert (again.jobs()["j"].attempt, again.jobs()["j"].state) == (
        2,
        "running",
    )  # whoever starts again expects it
    assert [event["id"] for event in again.events("j")] == ["j.1.1", "j.1.2", "j.1.3", "j.2.1"]
    assert "unknown" not in again.jobs()


def test_cancel_is_for_jobs_that_have_not_ended(tmp_path: Path):
    """And it is said in the next answer."""
    desk = Desk(tmp_path)
    desk.hear(body(1))

    assert desk.cancel() == ["j"]
    assert desk.hear(body(2)).answer["cancel"] is True
    desk.hear(body(3, "job.canceled", status="canceled", code=81))
    assert desk.cancel() == []


def test_lines_for_people(tmp_path: Path):
    """One for each delivery: what it says, and why it was not taken."""
    lines: list[str] = []
    desk = Desk(tmp_path, say=lines.append, price=100.0)
    progress = {
        "progress": {"fraction": 0.413, "step": 413, "total": 1000},
        "metrics": {"loss": {"last": 0.2347}},
    }
    desk.hear(body(17, phase={"name": "train"}, **progress))
    desk.hear(body(17))
    desk.hear(body(18, "job.succeeded", status="succeeded", code=0, outputs={"bytes": 5}))

    assert lines == [
        "j.1.17 job.progress train 41.3 % step 413/1000 loss 0.2347",
        "j.1.17 job.progress (event 17 was heard before)",
        "j.1.18 job.succeeded code 0 cost 1.0000, outputs 5 bytes",
    ]


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("ok", Fault()), ("500", Fault(500)), ("503/7", Fault(503, headers={"Retry-After": "7"})),
        ("away", Fault(DROPPED)), ("hang", Fault(SILENT)), ("delay=0.5", Fault(delay=0.5)),
    ],
)  # fmt: skip
def test_words_for_answers(word: str, fault: Fault):
    """As on the command line and at the keys."""
    assert Fault.parse(word) == fault


@pytest.mark.parametrize("word", ["", "99", "600", "no", "delay=x"])
def test_words_that_are_no_answer(word: str):
    """Refused."""
    with pytest.raises(ValueError):
        Fault.parse(word)
