"""Every event that a run can say is as the published schema says, by an independent validator."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator, ValidationError

from app_trainer_sdk.callbacks.sinks import RecordingSink
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import BadJob, ExitCode, Problem, StopRequested
from app_trainer_sdk.events import EventLog, encode_event
from app_trainer_sdk.narrator import Narrator
from app_trainer_sdk.outcome import describe_failure
from app_trainer_sdk.schemas.event import TYPES, event_schema

SCHEMA = Draft202012Validator(event_schema())
SPREAD = {"last": None, "mean": 0.5, "min": 0.1, "max": 0.9, "n": 3}
SAID: list[dict[str, Any]] = [
    {"kind": "phase", "name": "train"},
    {"kind": "phase", "name": "my own"},
    {"kind": "phase_end", "phase": "train", "verdict": "v", "survivors": [], "seconds": 0.1},
    {
        "kind": "progress", "step": 3, "total": 9, "updates_per_second": 0.0, "eta_seconds": None,
        "seconds": 0.1, "data_seconds": None, "metrics": {"loss": math.nan, "learning_rate": 1e-4},
        "nonfinite": ["loss"], "spreads": {"loss": SPREAD}, "seconds_p50": 0.1, "seconds_p95": 0.2,
        "examples_per_second": 80.0,
        "memory": {"rss_mib": 900, "peak_reserved_mib": 21900, "driver_mib": 23100},
    },
    {"kind": "recovered", "step": 3, "microbatch": 8, "next": 4, "error": "CUDA", "inputs": {"x": [8, 3]}},
    {"kind": "evaluation", "step": 3, "split": "validation", "seconds": 1.0, "loss": math.inf, "error": 0.5},
    {"kind": "checkpoint", "step": 3, "bytes": 7, "seconds": 0.1, "name": "step-00000003"},
    {
        "kind": "checkpoint", "step": 3, "bytes": 7, "seconds": 0.1, "name": "step-00000003", "stored": True,
        "identity": "sha256:0",
    },
    {"kind": "artifact", "name": "weights", "bytes": 7, "sha256": "0", "stored": True},
    {"kind": "artifact", "name": "weights", "path": "artifacts/weights", "bytes": 7, "sha256": "0"},
]  # fmt: skip


@pytest.fixture
def said(tmp_path: Path) -> list[dict[str, Any]]:
    """One event of each type, made as a run makes them."""
    sink = RecordingSink()
    teller = Narrator(EventLog(tmp_path, job_id="j", attempt=1, instance="i"), sink, Console(io.StringIO()))
    teller.say("job.accepted", status="running", sdk="0")
    for message in SAID:
        teller.hear(message)
    teller.say("job.stalled", status="running", phase={"name": "train"}, step=None, seconds=900.0)
    teller.say("job.plan", status="running", updates=3, examples_per_update=8, examples_seen=24, resumed=None,
               settings={"learning_rate": 0.1, "torch_compile": False}, data={}, changed=[])  # fmt: skip
    problems = [Problem("/model", "'x'", "a model", "did you mean 'y'?")]
    for status, error in {
        "interrupted": StopRequested("deadline"), "canceled": StopRequested("canceled"),
        "failed": BadJob("no", problems=problems), "succeeded": None,
    }.items():  # fmt: skip
        failure = describe_failure(error, phase="train", step=3) if error else None
        (tmp_path / "terminal.json").unlink(missing_ok=True)
        code = failure["code"] if failure else 0
        done = teller.finished(ExitCode(code))
        outputs = {"count": 0, "bytes": 0}
        teller.say(f"job.{status}", status=status, code=code, outputs=outputs, failure=failure, **done)
    return [dict(event.document) for event in sink.events]


def test_each_type_is_described_and_said(said: list[dict[str, Any]]):
    """All of them validate; none is described that is not said, and none said that is not described."""
    described = {get_args(each.model_fields["type"].annotation)[0] for each in TYPES}

    assert {event["type"] for event in said} == described
    for event in said:
        SCHEMA.validate(_as_read(event))


def test_what_was_cut_to_fit_is_valid_too(said: list[dict[str, Any]]):
    """Nothing beyond the envelope is promised."""
    for event in said:
        long = {
            **event,
            **({"failure": {**event["failure"], "message": "x" * 9000}} if event.get("failure") else {}),
        }
        SCHEMA.validate(_as_read(long))
        names = (
            "v",
            "id",
            "job_id",
            "attempt",
            "instance",
            "seq",
            "type",
            "time",
            "uptime_s",
            "status",
            "code",
        )
        SCHEMA.validate({name: event[name] for name in names if name in event})


@pytest.mark.parametrize(
    "change",
    [{"v": 2}, {"type": "job.unknown"}, {"seq": 0}, {"status": "failed"}, {"surprise": 1}, {"id": 3}],
)
def test_what_is_no_event(said: list[dict[str, Any]], change: dict[str, Any]):
    """The schema can fail."""
    with pytest.raises(ValidationError):
        SCHEMA.validate({**_as_read(said[0]), **change})


def _as_read(event: dict[str, Any]) -> Any:
    import json

    return json.loads(encode_event(event).body)
