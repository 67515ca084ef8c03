"""The supervisor always tells the end: signals, kills, divergence, sick receivers and sick disks."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import safetensors.torch
import torch
from loopback import reply
from process_helpers import gone, read_events

from app_trainer_sdk.attempt.admission import run_job
from app_trainer_sdk.callbacks.sinks import RecordingSink
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.job import load_job
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.supervisor import Supervisor
from app_trainer_sdk.training.order import Order


def said(directory: Path) -> str:
    """Everything a run wrote."""
    names = [path for path in directory.rglob("*") if path.is_file()]
    return "".join(path.read_text(errors="replace") for path in names)


def test_the_next_start_is_the_next_attempt(tmp_path: Path, toy_job: Any):
    """A failed job may be tried again in the same directory; a control plane may count itself."""
    job = toy_job(inputs={"dataset": "rows.jsonl"})
    for _ in range(2):
        run_job(job, tmp_path / "dir", console=Console(io.StringIO()))

    assert sorted(path.name for path in (tmp_path / "dir" / "attempts").iterdir()) == ["1", "2"]
    assert read_events(tmp_path / "dir", 2)[0]["id"].endswith(".2.1")


def test_a_signature_in_a_url_is_in_nothing_that_is_said(tmp_path: Path, toy_job: Any, serve: Any):
    """Presigned URLs are secrets: not in events, result, report, log or on the terminal."""
    server, told = serve(lambda handler, request: reply(handler, 404)), io.StringIO()
    job = toy_job(
        inputs={"dataset": f"{server.url}/rows?signature=VerySecret"}, callbacks=f"{server.url}/h?VerySecret"
    )
    code = run_job(job, tmp_path / "dir", console=Console(told))

    assert code is ExitCode.INPUT_MISSING
    assert "answered 404" in told.getvalue()
    assert "VerySecret" not in told.getvalue() + said(tmp_path / "dir")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_download_from_a_silent_server(tmp_path: Path, toy_job: Any, serve: Any, number: int):
    """CASES L4: nothing arrives and nothing will; within a moment it is 75 and can be resumed."""
    asked = iter([number])

    def answer(handler: Any, request: Any) -> None:
        for each in asked:
            os.kill(os.getpid(), each)
        server.released.wait(120.0)

    server = serve(answer)
    job = toy_job(inputs={"dataset": f"{server.url}/rows"})
    before = signal.getsignal(number)
    started = time.monotonic()
    code = run_job(job, tmp_path / "dir", console=Console(io.StringIO()))

    assert code is ExitCode.INTERRUPTED
    assert time.monotonic() - started < 60.0
    assert [event["type"] for event in read_events(tmp_path / "dir")] == ["job.accepted", "job.interrupted"]
    assert before is signal.getsignal(number)
    assert not list((tmp_path / "dir" / "inputs").rglob("*.tmp"))


def test_a_report_that_cannot_be_written_does_not_hide_the_end(tmp_path: Path, toy_job: Any):
    """A13: the exit code stands and the terminal event is heard."""
    (tmp_path / "dir" / "report.md").mkdir(parents=True)
    told, sink = io.StringIO(), RecordingSink()
    job = load_job(toy_job(inputs={"dataset": "rows.jsonl"}))
    code = Supervisor(job, JobDirectory(tmp_path / "dir"), Console(told), sink).run()

    assert code is ExitCode.INPUT_MISSING
    assert [event.type for event in sink.events] == ["job.accepted", "job.failed"]
    assert "warning: the report is not kept" in told.getvalue()


def test_an_error_nobody_thought_of_is_an_internal_error(
    tmp_path: Path, toy_job: Any, monkeypatch: pytest.MonkeyPatch
):
    """70 with a traceback's tail in the result, never a bare traceback and exit code 1."""
    monkeypatch.setenv("APP_TRAINER_ATTEMPT", "1")
    (tmp_path / "dir" / "attempts" / "1" / "start.json").mkdir(parents=True)
    job = load_job(toy_job())
    code = Supervisor(job, JobDirectory(tmp_path / "dir"), Console(io.StringIO()), RecordingSink()).run()
    result = json.loads((tmp_path / "dir" / "result.json").read_text())

    assert code is ExitCode.INTERNAL_ERROR
    assert "IsADirectoryError" in result["failure"]["traceback"]
    assert result["failure"]["retry"] == "once"


@pytest.fixture(scope="module")
def stopped(start_toy: Any) -> Any:
    """A slow toy below ``sh -c 'run && export'``, told to stop by SIGTERM after some updates."""
    toy = start_toy(
        shell="{} && touch exported", updates=1000, sleep_seconds=0.1, checkpoint_every=900, evaluate_every=0
    )
    toy.wait_for("job.progress")
    os.kill(toy.supervisor(), signal.SIGTERM)
    toy.end()
    return toy


def test_what_follows_a_stopped_run_does_not_run(stopped: Any):
    """CASES L3: 75 ends the chain, though a checkpoint was saved."""
    assert stopped.code == 75, stopped.told()
    assert not (stopped.job.parent / "exported").exists()
    (checkpoint,) = (stopped.directory / "checkpoints").iterdir()
    assert (checkpoint / "manifest.json").exists()
    assert stopped.events()[-1]["type"] == "job.interrupted"


def test_a_killed_rank_is_told_with_its_signal(stopped: Any, start_toy: Any):
    """CASES L3: 70 and a terminal event, in the attempt of the start before, whose outcome is not taken."""
    before = stopped.events()
    again = start_toy(again=stopped, environment={"APP_TRAINER_ATTEMPT": "1"})
    os.kill(again.rank(), signal.SIGKILL)

    assert again.end() == 70, again.told()
    after = again.events()
    assert "was killed by signal 9 (SIGKILL)" in after[-1]["failure"]["message"]
    assert (after[-1]["type"], after[-1]["code"]) == ("job.failed", 70)
    assert before == after[: len(before)]
    assert list(range(1, len(after) + 1)) == [event["seq"] for event in after]
    assert len({event["instance"] for event in after}) == 2


def test_a_killed_loader_worker_ends_the_run(start_toy: Any):
    """CASES L3: never a run that waits for rows for ever; 70 within 30 s, and nobody below it is left."""
    toy = start_toy(updates=5000, sleep_seconds=0.05, dataloader_workers=2)
    toy.wait_for("job.progress")
    below = [each.pid for each in psutil.Process(toy.rank()).children(recursive=True)]
    workers = [each for each in below if "resource_tracker" not in " ".join(psutil.Process(each).cmdline())]
    os.kill(workers[-1], signal.SIGKILL)

    assert toy.end(60.0) == 70, toy.told()
    assert "worker" in toy.events()[-1]["failure"]["message"]
    assert all(gone(each) for each in below)


def test_a_rank_does_not_outlive_its_supervisor(start_toy: Any):
    """A6: end of file on the line; gone soon after a SIGKILL of the supervisor."""
    toy = start_toy(updates=1000, sleep_seconds=0.1)
    toy.wait_for("job.progress")
    rank = toy.rank()
    os.kill(toy.process.pid, signal.SIGKILL)
    toy.end()

    assert gone(rank)


def test_a_run_that_diverges_keeps_its_last_finite_checkpoint(run_toy: Any):
    """CASES N1, J2: 82 though the callback is dead; the update is not applied, named, and no weight is NaN."""
    last = int(Order(40, 8, seed=42).epoch(0).ids[-1])
    toy = run_toy(
        updates=20,
        blow_up_at=last,
        nonfinite_limit=1,
        checkpoint_every=2,
        document={"callbacks": "http://127.0.0.1:9/dead?VerySecret"},
    )

    assert toy.code == 82, toy.told()
    lines = [json.loads(line) for line in (toy.directory / "metrics.jsonl").read_text().splitlines()]
    assert [line["applied"] for line in lines] == [True] * 4 + [False]
    assert lines[-1]["loss"] is None
    assert {"loss", "gradient_norm"} <= set(lines[-1]["nonfinite"])
    newest = max((toy.directory / "checkpoints").glob("step-*"))
    assert newest.name == "step-00000004"
    tensors = safetensors.torch.load_file(newest / "model.safetensors")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    event = json.loads((toy.directory / "attempts" / "1" / "terminal.json").read_text())
    assert (event["type"], event["code"]) == ("job.failed", 82)
    assert "not every event was delivered" in toy.told()
    assert "VerySecret" not in toy.told() + said(toy.directory)
