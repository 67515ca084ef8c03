"""What a rank says becomes events and lines, in order, progress not too often."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk.callbacks.sinks import RecordingSink
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.events import EventLog
from app_trainer_sdk.narrator import Narrator


def narrator(folder: Path) -> tuple[Narrator, RecordingSink, io.StringIO]:
    sink, told = RecordingSink(), io.StringIO()
    events = EventLog(folder, job_id="j", attempt=1, instance="i")
    return Narrator(events, sink, Console(told)), sink, told


def progress(step: int) -> dict[str, Any]:
    return {
        "kind": "progress", "step": step, "total": 9, "updates_per_second": 1.0, "eta_seconds": 1.0,
        "metrics": {"loss": 1.0}, "nonfinite": [], "seconds": 0.1, "data_seconds": 0.0,
    }  # fmt: skip


def test_where_the_run_is(tmp_path: Path):
    """Phase and step are those last said; a message nobody knows is passed over."""
    teller, sink, told = narrator(tmp_path)
    teller.hear({"kind": "phase", "name": "train"})
    teller.hear(progress(3))
    teller.hear({"kind": "weather", "is": "fine"})

    assert (teller.phase, teller.step) == ("train", 3)
    assert [event.type for event in sink.events] == ["job.phase", "job.progress"]
    assert "phase: train" in told.getvalue()


def test_the_latest_progress_comes_before_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Within the interval only the latest is kept, and it is said before what follows it."""
    monkeypatch.setenv("APP_TRAINER_MIN_EVENT_INTERVAL", "3600")
    teller, sink, _ = narrator(tmp_path)
    for step in (1, 2, 3):
        teller.hear(progress(step))
    teller.hear({"kind": "artifact", "name": "weights"})

    said = [(event.type, event.document.get("progress", {}).get("step")) for event in sink.events]
    assert said == [("job.progress", 1), ("job.progress", 3), ("job.artifact", None)]


def test_throttling_loses_no_extreme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Progress tells everything since the last that was acknowledged; all of it is done only at the end."""
    monkeypatch.setenv("APP_TRAINER_MIN_EVENT_INTERVAL", "3600")
    teller, sink, _ = narrator(tmp_path)
    heard = [0.0]
    monkeypatch.setattr(sink, "acknowledged", lambda: heard[0])
    for step, loss in ((1, 1.0), (2, 9.0), (3, 2.0), (9, 3.0)):
        told = {"loss": {"last": loss, "mean": loss, "min": loss, "max": loss, "n": 1}}
        teller.hear({**progress(step), "spreads": told, "nonfinite": ["gradient_norm"] if step == 2 else []})
        if step == 3:
            teller.say("job.checkpoint")
            heard[0] = 1.0 if sink.events[1].document["seq"] == 2 else 0.0
    teller.say("job.phase")
    first, second, third = (each.document for each in sink.events if each.type == "job.progress")

    assert (first["metrics"]["loss"]["max"], second["metrics"]["loss"]["max"]) == (1.0, 9.0)
    assert second["metrics"]["loss"]["n"] == 3
    assert third["metrics"]["loss"] == {
        "last": 3.0,
        "mean": pytest.approx(14 / 3),
        "min": 2.0,
        "max": 9.0,
        "n": 3,
    }
    assert (second["nonfinite"], third["nonfinite"]) == (["gradient_norm"], ["gradient_norm"])
    assert third["progress"]["fraction"] < 1.0
    assert teller.finished(ExitCode.SUCCEEDED)["progress"]["fraction"] == 1.0
    assert teller.finished(ExitCode.INTERRUPTED) == {}


def test_a_phase_that_kept_much_fits_an_event(tmp_path: Path):
    """D1: an event names the largest holders and stays within its size; the row on disk has them all."""
    teller, sink, _ = narrator(tmp_path)
    example = {"path": "x" * 300, "shape": [1], "dtype": "float32", "device": "cpu", "bytes": 4}
    held = {"owner": "x" * 300, "kind": "", "tensors": 1, "bytes": 4, "examples": [example] * 5}
    facts = {"phase": "encode", "verdict": "kept " + "x" * 3000, "survivors": [held] * 20, "peak": 7}
    teller.hear({"kind": "phase_end", **facts})
    (event,) = sink.events

    assert event.document["row"]["peak"] == 7
    assert [each["bytes"] for each in event.document["row"]["survivors"]] == [4, 4, 4]
    assert len(event.body) <= 4096


def test_memory_that_ran_out(tmp_path: Path):
    """A recovery is an event and a line: which update, what was tried, what is used now."""
    teller, sink, told = narrator(tmp_path)
    teller.hear({"kind": "recovered", "step": 3, "microbatch": 8, "next": 4, "error": "CUDA", "inputs": {}})

    facts = {"split": "test", "microbatch": 2, "next": 1, "error": "CUDA", "inputs": {}}
    teller.hear({"kind": "recovered", "step": 3, **facts})

    assert [event.type for event in sink.events] == ["job.recovered"] * 2
    assert "out of memory at update 3: microbatch 8 → 4 at the same global batch; CUDA" in told.getvalue()
    assert "memory evaluating test after update 3: 2 → 1 rows at once, the same sums; CUDA" in told.getvalue()


def test_a_transfer_is_a_line_for_people_and_one_row_for_the_control_plane(tmp_path: Path):
    """How far it is goes to the console only; what it did is the end of a phase."""
    teller, sink, told = narrator(tmp_path)
    teller.transferring("weights base: 1 B of 2 B", 1, 2)
    teller.transferred({"phase": "weights base", "bytes": 2, "seconds": 0.1})

    assert told.getvalue() == "weights base: 1 B of 2 B\n"
    assert [(event.type, event.document["edge"]) for event in sink.events] == [("job.phase", "end")]
    assert sink.events[0].document["row"]["bytes"] == 2
    assert sink.events[0].document["phase"] == {"name": "weights base"}
