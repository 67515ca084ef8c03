"""What is missing or does not fit is told before anything large is fetched."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from process_helpers import read_events

from app_trainer_sdk.attempt import preparation
from app_trainer_sdk.attempt.admission import run_job
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode


def said(directory: Path) -> str:
    """Everything a run wrote."""
    names = [path for path in directory.rglob("*") if path.is_file()]
    return "".join(path.read_text(errors="replace") for path in names)


def test_a_missing_input_is_told_everywhere_alike(tmp_path: Path, toy_job: Any):
    """Exit code, result, report and terminal event agree; no rank was started."""
    told = io.StringIO()
    code = run_job(toy_job(inputs={"dataset": "rows.jsonl"}), tmp_path / "dir", console=Console(told))
    result = json.loads((tmp_path / "dir" / "result.json").read_text())
    first, last = read_events(tmp_path / "dir")

    assert code is ExitCode.INPUT_MISSING
    assert (result["status"], result["exit_code"], result["name"]) == ("failed", 66, "input_missing")
    assert tuple(result["failure"][name] for name in ("phase", "origin", "retry")) == ("inputs", "user", "no")
    assert (first["type"], last["type"], last["code"]) == ("job.accepted", "job.failed", 66)
    assert result["failure"]["message"] == last["failure"]["message"]
    assert f"{tmp_path}/rows.jsonl" in told.getvalue()
    assert not (tmp_path / "dir" / "attempts" / "1" / "logs").exists()


def test_what_does_not_fit_is_refused_before_any_download(tmp_path: Path, toy_job: Any, serve: Any):
    """E3: 78 with the nearest settings, told everywhere alike; the server of the inputs was never asked."""
    server = serve(lambda handler, request: None)
    job = toy_job(inputs={"dataset": f"{server.url}/rows"}, hyperparameters={"microbatch": 8})
    told = io.StringIO()
    code = run_job(job, tmp_path / "dir", console=Console(told), gpu="0.2GiB")
    result = json.loads((tmp_path / "dir" / "result.json").read_text())

    assert code is ExitCode.HARDWARE_UNFIT
    assert (result["failure"]["phase"], result["failure"]["origin"]) == ("plan", "resource")
    assert "the leanest way that the job allows (microbatch 8, " in told.getvalue()
    assert "expected a T4" in result["failure"]["message"]
    assert server.received == []


def test_weights_that_cannot_fit_are_refused_before_any_download(tmp_path: Path, toy_job: Any, serve: Any):
    """A13 row 7: preflight counts the files that a job lists: 73, and their server was never asked."""
    server = serve(lambda handler, request: None)
    file = {"path": "model.safetensors", "size": 1 << 60, "urls": [f"{server.url}/w"]}
    job = toy_job(weights={"base": {"files": [file]}})
    code = run_job(job, tmp_path / "dir", console=Console(io.StringIO()))
    result = json.loads((tmp_path / "dir" / "result.json").read_text())

    assert code is ExitCode.DISK_FULL
    assert result["failure"]["phase"] == "preflight"
    assert server.received == []


def test_room_is_left_for_the_checkpoints_of_the_plan(
    tmp_path: Path, toy_job: Any, serve: Any, monkeypatch: pytest.MonkeyPatch
):
    """A13 row 7: a download that would take their place is refused before its first byte."""
    monkeypatch.setattr(preparation, "fit_to_cards", lambda *_, **__: {"checkpoint_bytes": 1 << 60})
    server, told = serve(lambda handler, request: None), io.StringIO()
    for said in ({"inputs": {"dataset": {"url": f"{server.url}/rows", "size": 5}}},
                 {"weights": {"base": {"url": f"{server.url}/w", "size": 5}}}):  # fmt: skip
        code = run_job(toy_job(**said), tmp_path / "dir", console=Console(told), gpu="24GiB")

        assert code is ExitCode.DISK_FULL
        assert "3458764513.8 GB in reserve" in told.getvalue()
    assert server.received == []


def test_a_resume_is_not_planned_again(tmp_path: Path, toy_job: Any):
    """A checkpoint has its plan: a card that is too small for a new start is no reason to refuse."""
    (tmp_path / "dir" / "checkpoints" / "step-00000001").mkdir(parents=True)
    job = toy_job(inputs={"dataset": "rows.jsonl"})
    code = run_job(job, tmp_path / "dir", console=Console(io.StringIO()), gpu="0.2GiB")

    assert code is ExitCode.INPUT_MISSING
