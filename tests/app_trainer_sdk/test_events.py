"""Events: one envelope, one id, at most 4 KiB, strict JSON, on disk before anybody hears of them."""

from __future__ import annotations

import json
import math
import resource
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_trainer_sdk.events import EVENT_BYTES, EventLog, encode_event, last_sequence, lighter, read_terminal

NOON = datetime(2026, 11, 30, 12, 0, 0, 123456, tzinfo=UTC)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200),
    lambda below: st.lists(below, max_size=8) | st.dictionaries(st.text(max_size=30), below, max_size=8),
    max_leaves=40,
)


def log(folder: Path, *, instance: str = "ab") -> EventLog:
    return EventLog(folder, job_id="j", attempt=2, instance=instance, now=lambda: NOON, monotonic=lambda: 5.0)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [strict(line) for line in (folder / "events.jsonl").read_bytes().splitlines()]


def strict(text: bytes) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_the_envelope(tmp_path: Path):
    """Version, id, job, attempt, instance, sequence, type, time in UTC with milliseconds, then the facts."""
    event = log(tmp_path).add("job.accepted", status="running")

    assert strict(event.body) == {
        "v": 1, "id": "j.2.1", "job_id": "j", "attempt": 2, "instance": "ab", "seq": 1, "type": "job.accepted",
        "time": "2026-11-30T12:00:00.123Z", "uptime_s": 0.0, "status": "running",
    }  # fmt: skip
    assert (event.id, event.type, event.replaceable) == ("j.2.1", "job.accepted", False)
    assert event.body + b"\n" == (tmp_path / "events.jsonl").read_bytes()


def test_sequence_goes_on_over_a_restart_in_the_same_attempt(tmp_path: Path):
    """CASES J4: strictly increasing, in a new process too; the instance tells the processes apart."""
    first = log(tmp_path, instance="one")
    for _ in range(3):
        first.add("job.progress")
    second = log(tmp_path, instance="two")
    second.add("job.progress")
    second.add("job.phase")

    assert [line["seq"] for line in lines(tmp_path)] == [1, 2, 3, 4, 5]
    assert [line["instance"] for line in lines(tmp_path)] == ["one"] * 3 + ["two"] * 2


@pytest.mark.parametrize("torn", [b'{"seq": 9', b"\xff\x00", b'{"v": 1, "se'])
def test_a_line_cut_off_by_a_kill_is_dropped(tmp_path: Path, torn: bytes):
    """Nobody was told of it: its number is used again, and the next event does not join it."""
    log(tmp_path).add("job.accepted")
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(torn)

    log(tmp_path).add("job.phase")

    assert [(line["seq"], line["type"]) for line in lines(tmp_path)] == [(1, "job.accepted"), (2, "job.phase")]


def test_the_last_sequence_of_odd_files(tmp_path: Path):
    """No file, an empty one, and lines that are no events."""
    path = tmp_path / "events.jsonl"

    assert last_sequence(path) == 0
    path.write_bytes(b'3\nnull\n[]\n{"seq": null}\n{"seq": 4}\nx\n')
    assert last_sequence(path) == 4


def test_the_terminal_event_is_kept_once(tmp_path: Path):
    """Byte for byte what is sent; a second ending in the same attempt does not replace it."""
    events = log(tmp_path)
    events.add("job.interrupted", status="interrupted", code=75)

    assert not (tmp_path / "terminal.json").exists()
    event = events.add("job.failed", status="failed", code=70)
    log(tmp_path).add("job.succeeded", status="succeeded", code=0)
    assert event.body == (tmp_path / "terminal.json").read_bytes()


@pytest.mark.parametrize("torn", [b"", b'{"v": 1, "type": "job.suc'])
def test_a_terminal_event_that_a_kill_cut_off_is_made_anew(tmp_path: Path, torn: bytes):
    """Nobody heard of it: it is sent only when it is whole on the disk."""
    (tmp_path / "terminal.json").write_bytes(torn)
    event = log(tmp_path).add("job.failed", status="failed", code=70)

    assert event.body == (tmp_path / "terminal.json").read_bytes()
    assert read_terminal(tmp_path) == event


def test_an_attempt_that_ended_says_the_same_end_again(tmp_path: Path):
    """Byte for byte, whatever it would end with now, and in the log once."""
    first = log(tmp_path).add("job.failed", status="failed", code=70)
    again = log(tmp_path, instance="cd").add("job.succeeded", status="succeeded", code=0)

    assert again.body == first.body
    assert [line["type"] for line in lines(tmp_path)] == ["job.failed"]


def test_a_replacement_with_an_empty_disk_goes_on_where_the_receiver_is(tmp_path: Path):
    """A4: the receiver says which number it wants next; numbers never go back."""
    events = log(tmp_path)
    events.add("job.accepted")
    events.go_on_from(18)
    events.add("job.phase")
    events.go_on_from(3)
    events.add("job.phase")

    assert [line["seq"] for line in lines(tmp_path)] == [1, 18, 19]


def test_a_lighter_event_has_the_same_id_and_no_metrics():
    """For a receiver that finds it too large; a terminal event has one form only."""
    event = encode_event({"id": "j.1.1", "type": "job.progress", "metrics": {"loss": 1.0}, "settings": {}})
    end = encode_event({"id": "j.1.2", "type": "job.failed", "metrics": {"loss": 1.0}})

    assert strict(lighter(event).body) == {"id": "j.1.1", "type": "job.progress", "nonfinite": []}
    assert lighter(end) is end


def test_what_may_be_a_secret_is_in_no_event(tmp_path: Path):
    """Whoever said it: an exception's text, a row of a phase, a list in it."""
    events = log(tmp_path)
    events.add(
        "job.failed", failure={"message": "GET https://h/x?sig=planted"}, row=[{"a": "s3://b/c?planted"}]
    )

    assert b"planted" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_non_finite_metrics_become_null_and_are_named():
    """CASES J1: one NaN hides nothing else, and a strict parser reads the body."""
    metrics = {"loss": math.nan, "lr": math.inf, "acc": 0.5, "summary": {"max": -math.inf, "n": 3}}
    body = strict(encode_event({"type": "job.progress", "metrics": metrics}).body)

    assert body["metrics"] == {"loss": None, "lr": None, "acc": 0.5, "summary": {"max": None, "n": 3}}
    assert body["nonfinite"] == ["loss", "lr", "summary"]
    after = strict(encode_event({"type": "job.progress", "metrics": {"loss": 0.25}}).body)
    assert (after["metrics"], after["nonfinite"]) == ({"loss": 0.25}, [])


def test_scalars_of_other_libraries_are_numbers():
    """CASES J1: numpy scalars too; what is no JSON at all is told as its text."""
    metrics = {"loss": numpy.float32("nan"), "acc": numpy.float32(0.5), "n": numpy.int64(3)}
    body = strict(encode_event({"type": "x", "metrics": metrics, "path": Path("/a")}).body)

    assert body["metrics"] == {"loss": None, "acc": 0.5, "n": 3}
    assert (body["nonfinite"], body["path"]) == (["loss"], "/a")


@settings(max_examples=50)
@given(
    st.dictionaries(st.sampled_from(["metrics", "failure", "settings", "data", "outputs", "row", "x"]), VALUES)
)
def test_never_more_than_the_cap_and_always_strict(facts: dict[str, Any]):
    """Whatever is said, the body is strict JSON of at most 4,096 bytes that still has its envelope."""
    envelope = {
        "v": 1, "id": "j" * 128 + ".1.1", "job_id": "j" * 128, "attempt": 1, "instance": "ab", "seq": 1,
        "type": "job.progress", "time": "t", "uptime_s": 1.5, "status": "running",
    }  # fmt: skip
    event = encode_event({**envelope, **facts})

    assert len(event.body) <= EVENT_BYTES
    assert envelope.items() <= strict(event.body).items()


def test_what_does_not_fit_is_cut_least_useful_first():
    """The traceback goes before the message, and code and message stay."""
    failure = {"code": 70, "message": "é" * 500, "traceback": "line\n" * 1000, "problems": ["x" * 900]}
    body = strict(encode_event({"type": "job.failed", "failure": failure, "settings": {"a": 1}}).body)

    assert body["failure"] == {"code": 70, "message": "é" * 500}
    assert body["settings"] == {"a": 1}


def test_at_most_thirty_two_metrics():
    """The first of them, in the order they were given."""
    body = strict(encode_event({"type": "x", "metrics": {f"m{number}": number for number in range(40)}}).body)

    assert [f"m{number}" for number in range(32)] == list(body["metrics"])


def test_a_full_disk_keeps_nobody_from_hearing(tmp_path: Path):
    """The event is made and can be sent; the file has whole lines only. A size limit stands in for the disk."""
    events = log(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        said = [events.add("job.phase", status="running", text="x" * 100) for _ in range(10)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)

    assert list(range(1, 11)) == [event.document["seq"] for event in said]
    assert [event.body for event in said[:3]] == (tmp_path / "events.jsonl").read_bytes().splitlines()
