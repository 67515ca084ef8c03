"""Trackers run beside the run: what they do, or fail to do, is nothing to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk.callbacks.trackers import check_tracker, follow
from app_trainer_sdk.errors import BadJob, ExitCode
from app_trainer_sdk.training.metrics import append_line, keep_lines

MODULE = """
import json, os, time
class Recording:
    def __init__(self):
        self.file = open(os.environ["RECORD"], "a")
        self.file.write(repr([name for name in os.environ if "CALLBACK" in name]) + "\\n")
    def event(self, event): self.file.write(event["type"] + "\\n")
    def metric(self, line): self.file.write(f"update {line['step']}\\n")
    def close(self): self.file.write("closed\\n"); self.file.close()
class Crashing:
    def metric(self, line): pass
    def event(self, event): raise RuntimeError("tracker is sick")
class Slow:
    def metric(self, line): pass
    def event(self, event): time.sleep(60)
"""
SCRIPT = """
metric(step=1)
progress(1, 2, 0.5)
metric(step=2)
progress(2, 2, 0.25)
leave(0, 'succeeded', outputs=[])
"""


@pytest.fixture
def trackers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Choose trackers by name; what the good one heard."""
    (tmp_path / "my_trackers.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.setenv("APP_TRAINER_CALLBACK_TOKEN", "planted-token")

    def choose(*names: str, seconds: float) -> Path:
        monkeypatch.setenv("APP_TRAINER_SINKS", ",".join(f"my_trackers:{name}" for name in names))
        monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", str(seconds))
        return tmp_path / "record"

    return choose


def test_a_crashing_tracker_touches_neither_the_run_nor_another(run_fake: Any, trackers: Any):
    """The run ends well; the good tracker heard all, once, and got no secret."""
    record = trackers("Crashing", "Recording", seconds=120)
    run = run_fake(SCRIPT)
    told = record.read_text().splitlines()

    assert run.code is ExitCode.SUCCEEDED
    assert "tracker is sick" in (run.layout.attempt(1) / "logs" / "sink-my_trackers:Crashing.log").read_text()
    assert [event["type"] for event in run.events()] == [line for line in told if line.startswith("job.")]
    assert [line for line in told if line.startswith("update")] == ["update 1", "update 2"]
    assert "closed" in told
    assert {line for line in told if line.startswith("[")} == {"[]"}


def test_a_tracker_that_hangs_is_ended_with_the_run(run_fake: Any, trackers: Any):
    """It gets the time that a control plane would get, and no more."""
    trackers("Slow", seconds=0.2)

    assert run_fake(SCRIPT).code is ExitCode.SUCCEEDED


def test_an_unknown_tracker_is_refused_before_anything_runs():
    """64 with what is installed; nothing of a tracker is imported to find out."""
    entries = [EntryPoint("trackio", "no_such_module:Tracker", "app_trainer_sdk.sinks")]
    check_tracker("trackio", entries=entries)
    check_tracker("json:JSONDecoder", entries=entries)

    for name in ("trackoi", "no_such_module_here:Tracker"):
        with pytest.raises(BadJob, match="APP_TRAINER_SINKS"):
            check_tracker(name, entries=entries)
    with pytest.raises(BadJob, match="did you mean 'trackio'"):
        check_tracker("trackoi", entries=entries)


class Kept:
    """A tracker in this process."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def event(self, event: Any) -> None:
        self.told.append(event["type"])

    def metric(self, line: Any) -> None:
        self.told.append(line["step"])

    def close(self) -> None:
        self.told.append("closed")


class Between(threading.Event):
    """What happens to the files between one look and the next; after the last of it the run has ended."""

    def __init__(self, *happenings: Callable[[], object]) -> None:
        super().__init__()
        self._happenings = iter(happenings)

    def wait(self, timeout: float | None = None) -> bool:
        if happening := next(self._happenings, None):
            happening()
        else:
            self.set()
        return self.is_set()


def test_a_file_that_is_cut_shorter_is_read_on(tmp_path: Path):
    """A resume cuts metrics behind its checkpoint: earlier starts' lines are not told, later ones are."""
    events, metrics, kept = tmp_path / "e", tmp_path / "m", Kept()
    for step in (1, 2):
        append_line(metrics, {"step": step})
    between = Between(
        lambda: keep_lines(metrics, 1),
        lambda: append_line(metrics, {"step": 2}),
        lambda: events.write_text(json.dumps({"type": "job.succeeded"}) + "\n" + '{"type": "torn'),
    )

    follow(kept, events, metrics, between, begin=metrics.stat().st_size)

    assert kept.told == [2, "job.succeeded", "closed"]
