"""The heartbeat and the command that reads it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from process_helpers import supervise

from app_trainer_sdk.cli import main
from app_trainer_sdk.health import Heartbeat, health


class Clock:
    """Seconds that go when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock."""
    return Clock()


def folder(directory: Path, attempt: int = 1) -> Path:
    place = directory / "attempts" / str(attempt)
    place.mkdir(parents=True)
    return place


def test_it_beats_when_it_is_due(tmp_path: Path, clock: Clock):
    """A7: every ``HEARTBEAT_SECONDS``, with where the job is."""
    place = folder(tmp_path)
    heart = Heartbeat(place, clock=clock)
    for clock.now, step in ((1000.0, 1), (1030.0, 3), (1059.9, 4)):
        heart.beat(step=step, phase="train")
    beat = json.loads((place / "heartbeat").read_text())

    assert (beat["step"], beat["phase"], beat["monotonic"], beat["every_seconds"]) == (3, "train", 1030.0, 30.0)
    assert [each.name for each in place.iterdir()] == ["heartbeat"]


def test_alive_and_dead(tmp_path: Path, clock: Clock):
    """Three beats may be missing; a beat of before a restart of the machine is none."""
    Heartbeat(folder(tmp_path), clock=clock).beat(step=7, phase="train", stalled=True)

    assert health(tmp_path, clock=clock) == (
        0,
        "alive: attempt 1, phase train, update 7, stalled, last beat 0 s ago",
    )
    for now, code in ((1090.0, 0), (1090.1, 70), (999.0, 70)):
        clock.now = now
        assert health(tmp_path, clock=clock)[0] == code


def test_the_newest_attempt_counts(tmp_path: Path, clock: Clock):
    """The tenth is newer than the ninth."""
    for attempt in (9, 10):
        Heartbeat(folder(tmp_path, attempt), clock=clock).beat(step=attempt)

    assert "attempt 10" in health(tmp_path, clock=clock)[1]


def test_setting_the_clock_ends_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ages are of running time: a machine whose clock jumps a day keeps its jobs."""
    Heartbeat(folder(tmp_path)).beat(step=1)
    tomorrow = time.time() + 86400
    monkeypatch.setattr(time, "time", lambda: tomorrow)

    assert health(tmp_path)[0] == 0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"monotonic": null, "every_seconds": 1}'])
def test_a_file_nobody_wrote(tmp_path: Path, content: str):
    """What cannot be read is no life."""
    (folder(tmp_path) / "heartbeat").write_text(content)

    assert health(tmp_path)[0] == 70


def test_a_disk_that_takes_nothing(tmp_path: Path, clock: Clock):
    """A heartbeat that cannot be written ends nothing."""
    Heartbeat(tmp_path / "nowhere", clock=clock).beat(step=1)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """A12: 0 for a job that beats, else a code that is never 1 or 2; the directory comes from its variable."""
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("APP_TRAINER_JOB_DIR", str(tmp_path / "dir"))

    assert main(["health"]) == 64
    assert "nothing at" in capsys.readouterr().err
    (tmp_path / "dir").mkdir()
    assert main(["health"]) == 70
    assert "no attempt has begun" in capsys.readouterr().out
    supervise(tmp_path, "leave(0, 'succeeded', outputs=[], timings={})")

    assert main(["health"]) == 0
    assert capsys.readouterr().out == "ended: succeeded, attempt 1\n"
    assert main(["health", str(tmp_path / "dir")]) == main(["health", "--job-dir", str(tmp_path / "dir")]) == 0


def test_another_phase_is_told_at_once(tmp_path: Path, clock: Clock):
    """A phase of a second is seen; what is not known yet is not shown."""
    heart = Heartbeat(folder(tmp_path), clock=clock)
    for phase in ("", "inputs"):
        heart.beat(phase=phase, step=None)
        shown = f", phase {phase}" if phase else ""
        assert health(tmp_path, clock=clock)[1] == f"alive: attempt 1{shown}, last beat 0 s ago"


def test_an_ended_job_says_how(tmp_path: Path, clock: Clock):
    """A job is alive while its end is told, then ended with its own code, however old its last beat is."""
    heart = Heartbeat(folder(tmp_path), clock=clock)
    heart.beat(phase="train", step=3)
    ending = {"status": "failed", "exit_code": 82, "name": "diverged", "attempt": 1}
    (tmp_path / "result.json").write_text(json.dumps(ending))

    assert health(tmp_path, clock=clock)[0] == 0
    heart.beat(phase="train", step=3, over=True)
    assert health(tmp_path, clock=clock) == (82, "ended: failed (diverged, exit code 82), attempt 1")
    clock.now += 1e6
    assert health(tmp_path, clock=clock)[0] == 82
