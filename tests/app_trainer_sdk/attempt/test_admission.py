"""A directory is refused, or an end that nobody told is told again."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from process_helpers import read_events, supervise

from app_trainer_sdk.attempt.admission import run_job
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode


@pytest.mark.parametrize(
    ("name", "content"), [("job.json", "{"), ("result.json", "\x00"), ("job.json", '{"job_id": "x"}')]
)
def test_a_directory_with_other_things_is_refused(tmp_path: Path, toy_job: Any, name: str, content: str):
    """Files nobody can read, or of another job: 64, and they stay as they are."""
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / name).write_text(content)

    assert run_job(toy_job(), tmp_path / "dir", console=Console(io.StringIO())) is ExitCode.BAD_JOB
    assert [(name, content)] == [(path.name, path.read_text()) for path in (tmp_path / "dir").iterdir()]


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path, toy_job: Any):
    """A file stands in its place: 64 with the option to change."""
    (tmp_path / "dir").write_text("x")
    told = io.StringIO()

    assert run_job(toy_job(), tmp_path / "dir", console=Console(told)) is ExitCode.BAD_JOB
    assert "change --job-dir" in told.getvalue()


def test_an_end_that_nobody_told(tmp_path: Path, toy_job: Any, monkeypatch: pytest.MonkeyPatch):
    """A13 row 12: killed between the result of a finished job and its event, the next start tells it, once."""
    job = toy_job()
    told = supervise(tmp_path, "leave(0, 'succeeded', outputs=[], timings={}, step=7)")
    assert told.code == 0
    attempt = tmp_path / "dir" / "attempts" / "1"
    (attempt / "terminal.json").unlink()
    lines = (attempt / "events.jsonl").read_bytes().splitlines(keepends=True)
    (attempt / "events.jsonl").write_bytes(b"".join(lines[:-1]))
    (tmp_path / "dir" / "report.md").unlink()
    for _ in range(2):
        assert run_job(job, tmp_path / "dir", console=Console(io.StringIO())) is ExitCode.SUCCEEDED

    (last,) = read_events(tmp_path / "dir", 2)
    assert (last["type"], last["code"], last["progress"]["fraction"]) == ("job.succeeded", 0, 1.0)
    assert (tmp_path / "dir" / "report.md").exists()
    assert [each.name for each in sorted((tmp_path / "dir" / "attempts").iterdir())] == ["1", "2"]


@pytest.mark.parametrize(("stored", "told"), [(False, True), (True, False)])
def test_an_artifact_that_is_gone_is_told(tmp_path: Path, toy_job: Any, stored: bool, told: bool):
    """The job stays finished; what was stored elsewhere need not be here."""
    job, said = toy_job(), io.StringIO()
    output = {"name": "weights", "path": "artifacts/weights", "bytes": 1, "sha256": "0" * 64, "stored": stored}
    supervise(tmp_path, f"leave(0, 'succeeded', outputs=[{output}], timings={{}}, step=7)")

    assert run_job(job, tmp_path / "dir", console=Console(said)) is ExitCode.SUCCEEDED
    assert ("warning: artifacts/weights is not there any more" in said.getvalue()) == told
