"""A job has succeeded when its receiver has confirmed what it made, and not before; no rank has torch."""

from __future__ import annotations

import io
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from loopback import reply
from outputs_ranks import DONE, MAKES, job_of
from process_helpers import BEGUN, Told, signalled, supervise, wait_for
from receivers import Receiver

from app_trainer_sdk.attempt.admission import run_job
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.listener.desk import SILENT, Fault
from app_trainer_sdk.outputs.command import upload_job
from app_trainer_sdk.schemas.event import event_schema
from app_trainer_sdk.schemas.result import result_schema

pytestmark = pytest.mark.usefixtures("quick")


def stored_events(told: Told, kind: str) -> list[Any]:
    """What was said to be stored."""
    documents = [event for event in told.events if event["type"] == kind]
    return [
        each
        for event in documents
        for each in (event.get("artifact") or event.get("checkpoint"),)
        if "stored" in each
    ]


def test_success_is_said_once_the_artifact_is_confirmed(tmp_path: Path, receiver: Receiver):
    """Bytes are the same, sizes are told everywhere, and every document keeps its schema."""
    told = supervise(tmp_path, DONE, job=job_of(receiver))
    result = told.result
    (artifact,) = stored_events(told, "job.artifact")

    assert told.code is ExitCode.SUCCEEDED
    assert receiver.stored("artifact", "weights", "model.bin") == b"w" * 1000
    assert (artifact["name"], artifact["bytes"], artifact["stored"]) == ("weights", 1000, True)
    assert [each["stored"] for each in result["outputs"]] == [True]
    assert result["stored"] == {"artifacts": 1000}
    assert told.last["outputs"]["count"] == 1
    assert told.last["outputs"]["stored_bytes"] == 1000
    assert json.loads((told.directory / "manifest.json").read_text())["stored"] == {"artifacts": 1000}
    assert result["timings"]["upload"] > 0
    Draft202012Validator(result_schema()).validate(result)
    for event in told.events:
        Draft202012Validator(event_schema()).validate(event)


def test_a_plain_run_after_74_sends_what_lies_there(tmp_path: Path, receiver: Receiver):
    """Nothing is looked at, fetched, trained or exported again: no rank begins, and the job ends well."""
    receiver.store.faults.extend([Fault(500)] * 1000)
    told = supervise(tmp_path, DONE, job=job_of(receiver))
    receiver.store.faults.clear()
    said = io.StringIO()
    code = run_job(tmp_path / "job.json", told.directory, console=Console(said))

    assert (told.code, code) == (ExitCode.UPLOAD_FAILED, ExitCode.SUCCEEDED)
    assert "run it again to send them" in told.console
    assert "they only have to be sent" in said.getvalue()
    assert receiver.stored("artifact", "weights", "model.bin") == b"w" * 1000
    assert not (told.directory / "attempts" / "2" / "start.json").exists()
    assert (told.result["status"], told.result["step"], told.result["attempt"]) == ("succeeded", 3, 2)


def test_only_what_is_required_must_be_confirmed(tmp_path: Path):
    """An artifact beside it that does not fit is told, and not listed."""
    body = MAKES + "leave(0, 'succeeded', outputs=[made('extra', b'e' * 9000), made('weights', b'w' * 10)])"
    with Receiver(tmp_path / "desk", quota=5000) as receiver:
        told = supervise(tmp_path, body, job=job_of(receiver, required=["weights"]))

    assert told.code is ExitCode.SUCCEEDED
    assert {each["name"]: each["stored"] for each in told.result["outputs"]} == {
        "extra": False,
        "weights": True,
    }
    assert told.last["outputs"]["count"] == 1
    assert "extra is not uploaded" in told.console


def test_a_required_artifact_that_is_not_there_is_74(tmp_path: Path, receiver: Receiver):
    """Whatever else was uploaded."""
    told = supervise(
        tmp_path, MAKES + "leave(0, 'succeeded', outputs=[])", job=job_of(receiver, required=["weights"])
    )

    assert (told.code, told.last["failure"]["message"]) == (74, "there is no artifact weights")


def test_a_fenced_attempt_uploads_nothing_and_says_76(tmp_path: Path, receiver: Receiver):
    """A newer attempt runs: its grants are refused."""
    event = {"v": 1, "id": "j.9.1", "job_id": "j", "attempt": 9, "instance": "i", "seq": 1}
    receiver.desk.hear(json.dumps({**event, "type": "job.accepted"}).encode())
    told = supervise(tmp_path, DONE, job=job_of(receiver))

    assert (told.code, told.last["type"]) == (76, "job.interrupted")
    assert receiver.store.requests == []


def test_a_stop_while_uploading_ends_in_time_and_leaves_the_files(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """TERM while a store is silent: 30 % of the grace, then 75; the work is kept."""
    monkeypatch.setenv("APP_TRAINER_GRACE_SECONDS", "6")
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "60")
    receiver.store.faults.append(Fault(SILENT))

    def stop_soon(supervisor: Any) -> None:
        def wait() -> None:
            while not receiver.outputs._folder.joinpath("granted").exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=wait, daemon=True).start()

    told = supervise(tmp_path, DONE, job=job_of(receiver), meanwhile=stop_soon)
    spent = told.result["stop"]["seconds"]

    assert told.code is ExitCode.INTERRUPTED
    assert 1.0 < spent["upload"] < 30.0  # and not the minute that the store would have
    assert (told.directory / "artifacts" / "weights" / "model.bin").exists()
    assert upload_job(told.directory, None, Console()) is ExitCode.SUCCEEDED


def test_checkpoints_go_up_while_training_goes_on_and_the_next_machine_is_told_of_the_newest(
    tmp_path: Path, receiver: Receiver
):
    """Each is said when it is whole over there; the best one goes along with the newest."""
    body = MAKES + (
        "checkpoint(1, b'a' * 1000)\nwait_for('seen-1')\n"
        "checkpoint(2, b'b' * 1000, best=1)\nwait_for('seen-2')\nleave(70, 'internal_error')"
    )

    def watch(supervisor: Any) -> None:
        def look() -> None:
            for step in (1, 2):
                while (receiver.outputs.resume("j") or {}).get("step") != step:
                    time.sleep(0.01)
                (tmp_path / "dir" / f"seen-{step}").touch()

        threading.Thread(target=look, daemon=True).start()

    told = supervise(tmp_path, body, job=job_of(receiver, checkpoints=True), meanwhile=watch)
    first, second = stored_events(told, "job.checkpoint")
    resume = receiver.outputs.resume("j")

    assert told.code is ExitCode.INTERNAL_ERROR
    assert (first["step"], second["step"]) == (1, 2)
    assert resume is not None
    assert (resume["step"], resume["identity"]) == (2, second["identity"])
    assert {each["path"].split("/")[0] for each in resume["files"]} == {"step-00000001", "step-00000002"}
    assert told.result["stored"]["checkpoints"] == first["bytes"] + second["bytes"]
    assert not (tmp_path / "dir" / ".uploads").exists()


def test_an_ending_does_not_outrun_the_last_checkpoint(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """TERM while an older one creeps up: the newest is whole over there before the last event is said."""
    monkeypatch.setenv("APP_TRAINER_UPLOAD_BYTES_PER_SECOND", "1000")
    monkeypatch.setenv("APP_TRAINER_GRACE_SECONDS", "1000")
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "300")  # what creeps up has the processors last
    body = MAKES + (
        f"checkpoint(1, b'a' * 600_000)\n{BEGUN}stop = hear()\n"
        "checkpoint(2, b'b' * 600_000)\nleave(75, 'interrupted')"
    )
    told = supervise(tmp_path, body, job=job_of(receiver, checkpoints=True), acts=[signalled(signal.SIGTERM)])
    resume = receiver.outputs.resume("j")

    assert (told.code, told.last["type"]) == (75, "job.interrupted")
    assert [each["step"] for each in stored_events(told, "job.checkpoint")] == [2]
    assert resume is not None
    assert resume["step"] == 2
    assert 0.0 < told.result["stop"]["seconds"]["upload"] < 300.5


def test_a_checkpoint_that_is_not_whole_over_there_is_nobodys(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """A grace that is too short: nothing is claimed, and nobody is told to resume from half of it."""
    monkeypatch.setenv("APP_TRAINER_GRACE_SECONDS", "4")
    receiver.store.faults.append(Fault(SILENT))
    body = MAKES + BEGUN + "hear()\ncheckpoint(1)\nleave(75, 'interrupted')"
    began = time.monotonic()
    told = supervise(tmp_path, body, job=job_of(receiver, checkpoints=True), acts=[signalled(signal.SIGTERM)])

    assert told.code is ExitCode.INTERRUPTED
    assert stored_events(told, "job.checkpoint") == []
    assert receiver.outputs.resume("j") is None
    assert "the last checkpoint is not uploaded" in told.console
    assert time.monotonic() - began < 60.0


def test_retention_takes_nothing_away_from_an_upload(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    """The rank removes its folder at once: what was linked aside is sent all the same."""
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "300")
    body = MAKES + (
        f"checkpoint(1, b'a' * 100_000)\nimport shutil\n{BEGUN}wait_for('told')\n"
        "shutil.rmtree(root / 'checkpoints' / 'step-00000001')\n"
        "(root / 'gone').write_text('x')\nleave(70, 'internal_error')"
    )
    told_of, gone, answer = tmp_path / "dir" / "told", tmp_path / "dir" / "gone", receiver.outputs.answer
    receiver.outputs.answer = lambda asked: (wait_for(gone), answer(asked))[1]  # type: ignore[method-assign]
    told = supervise(
        tmp_path, body, job=job_of(receiver, checkpoints=True), acts=[lambda supervisor: told_of.touch()]
    )

    assert [each["step"] for each in stored_events(told, "job.checkpoint")] == [1]


def test_a_canceled_job_uploads_nothing_more(tmp_path: Path, receiver: Receiver):
    """Nobody wants it."""
    body = MAKES + BEGUN + "hear()\ncheckpoint(1)\nleave(81, 'canceled')"
    told = supervise(
        tmp_path, body, job=job_of(receiver, checkpoints=True),
        acts=[lambda supervisor: supervisor.order("cancel")],
    )  # fmt: skip

    assert told.code is ExitCode.CANCELED
    assert stored_events(told, "job.checkpoint") == []
    assert wait_for(told.directory / "result.json")


def test_the_jobs_own_urls_will_do(tmp_path: Path, serve: Any):
    """Long-lived PUT URLs instead of a control plane that grants."""
    server = serve(lambda handler, request: reply(handler))
    server.RequestHandlerClass.do_PUT = server.RequestHandlerClass.do_GET
    put = {"weights/model.bin": f"{server.url}/put?signature=very-secret"}
    told = supervise(tmp_path, DONE, job={"job_id": "j", "outputs": {"put": put}})

    assert told.code is ExitCode.SUCCEEDED
    assert [request.body for request in server.received] == [b"w" * 1000]
    written = "".join(path.read_text(errors="replace") for path in told.directory.rglob("*") if path.is_file())
    assert "very-secret" not in written
