"""The supervisor always tells the end: signals, kills, divergence, sick receivers and sick disks."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import safetensors.torch
import torch
from loopback import reply
from process_helpers import gone, supervise

from app_trainer_sdk.attempt import preparation
from app_trainer_sdk.attempt.admission import run_job
from app_trainer_sdk.callbacks.sinks import RecordingSink
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.job import load_job
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.supervisor import Supervisor
from app_trainer_sdk.training.order import Order

TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}


@pytest.fixture
def toy_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a toy job; the shared cache is the test's own."""
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("APP_TRAINER_ATTEMPT", raising=False)

    def write(**parts: Any) -> Path:
        path = tmp_path / "job.json"
        path.write_text(json.dumps({**TOY, **parts}))
        return path

    return write


def events(directory: Path, attempt: int = 1) -> list[dict[str, Any]]:
    path = directory / "attempts" / str(attempt) / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def said(directory: Path) -> str:
    """Everything a run wrote."""
    names = [path for path in directory.rglob("*") if path.is_file()]
    return "".join(path.read_text(errors="replace") for path in names)


def test_a_missing_input_is_told_everywhere_alike(tmp_path: Path, toy_job: Any):
    """Exit code, result, report and terminal event agree; no rank was started."""
    told = io.StringIO()
    code = run_job(toy_job(inputs={"dataset": "rows.jsonl"}), tmp_path / "dir", console=Console(told))
    result = json.loads((tmp_path / "dir" / "result.json").read_text())
    first, last = events(tmp_path / "dir")

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


def test_the_next_start_is_the_next_attempt(tmp_path: Path, toy_job: Any):
    """A failed job may be tried again in the same directory; a control plane may count itself."""
    job = toy_job(inputs={"dataset": "rows.jsonl"})
    for _ in range(2):
        run_job(job, tmp_path / "dir", console=Console(io.StringIO()))

    assert sorted(path.name for path in (tmp_path / "dir" / "attempts").iterdir()) == ["1", "2"]
    assert events(tmp_path / "dir", 2)[0]["id"].endswith(".2.1")


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
    server = serve(lambda handler, request: server.released.wait(30.0))
    job = toy_job(inputs={"dataset": f"{server.url}/rows"})
    before = signal.getsignal(number)
    threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
    started = time.monotonic()
    code = run_job(job, tmp_path / "dir", console=Console(io.StringIO()))

    assert code is ExitCode.INTERRUPTED
    assert time.monotonic() - started < 3.0
    assert [event["type"] for event in events(tmp_path / "dir")] == ["job.accepted", "job.interrupted"]
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
    toy = start_toy(updates=1000, sleep_seconds=0.05, dataloader_workers=2)
    toy.wait_for("job.progress")
    below = [each.pid for each in psutil.Process(toy.rank()).children(recursive=True)]
    workers = [each for each in below if "resource_tracker" not in " ".join(psutil.Process(each).cmdline())]
    os.kill(workers[-1], signal.SIGKILL)

    assert toy.end(30.0) == 70, toy.told()
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

    (last,) = events(tmp_path / "dir", 2)
    assert (last["type"], last["code"], last["progress"]["fraction"]) == ("job.succeeded", 0, 1.0)
    assert (tmp_path / "dir" / "report.md").exists()
    assert [each.name for each in sorted((tmp_path / "dir" / "attempts").iterdir())] == ["1", "2"]
