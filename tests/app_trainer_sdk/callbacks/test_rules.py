"""The rules of the contract between a run and its control plane, with the listener as the other side."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from controlled import SUCCEEDS, control

from app_trainer_sdk.callbacks.flush import main as events
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.listener import Fault, Listener
from app_trainer_sdk.run import main as run

FAILURE = {
    "code": 70, "name": "internal_error", "message": "m", "phase": "train", "origin": "system", "retry": "once"
}  # fmt: skip
FAILS = f"train(3)\nleave(70, 'failed', failure={FAILURE})"


def as_soon_as(condition: Callable[[], Any], act: Callable[[], Any]) -> None:
    def wait() -> None:
        until(condition)
        act()

    threading.Thread(target=wait, daemon=True).start()


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def said(attempt: int, number: int, kind: str) -> bytes:
    event = {"id": f"j.{attempt}.{number}", "attempt": attempt, "instance": "n", "seq": number, "type": kind}
    return json.dumps({"v": 1, "job_id": "j", **event}).encode()


def heard(listener: Listener) -> list[str]:
    return [event["type"] for event in listener.desk.events("j")]


def test_a_run_and_its_control_plane_agree(run_fake: Any, listener: Listener):
    """What was accepted is what was said, progress apart; state, code, size and cost are those of the end."""
    ended = run_fake(SUCCEEDS, callbacks=control(listener))
    record = listener.desk.jobs()["j"]

    assert ended.code is ExitCode.SUCCEEDED
    assert (record.state, record.code, record.output_bytes) == ("succeeded", 0, 77)
    manifest = hashlib.sha256(ended.layout.manifest.read_bytes()).hexdigest()
    assert ended.events()[-1]["outputs"] == {"count": 1, "bytes": 77, "manifest_sha256": manifest}
    assert record.cost == pytest.approx(ended.events()[-1]["uptime_s"])
    told = [event for event in ended.events() if event["type"] != "job.progress"]
    assert [event for event in listener.desk.events("j") if event["type"] != "job.progress"] == told
    assert {line["how"] for line in delivered(ended)} == {"heard"}


def delivered(ended: Any) -> list[dict[str, Any]]:
    lines = (ended.layout.attempt(1) / "delivered.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_cancel_in_an_acknowledgement_ends_the_run(run_fake: Any, listener: Listener):
    """81, and the control plane hears the end."""
    as_soon_as(lambda: listener.desk.jobs(), listener.desk.cancel)
    ended = run_fake("train(1000)", callbacks=control(listener))

    assert ended.code is ExitCode.CANCELED
    assert listener.desk.jobs()["j"].state == "canceled"


def test_a_plain_webhook_cannot_cancel(run_fake: Any, listener: Listener):
    """The same words to a run in notify mode are nothing: it succeeds."""
    listener.desk.hear(said(1, 1, "job.phase"))
    listener.desk.cancel()
    ended = run_fake(SUCCEEDS, callbacks=f"{listener.url}/events")

    assert ended.code is ExitCode.SUCCEEDED


def test_who_was_taken_over_leaves_and_hands_over_nothing(run_fake: Any, listener: Listener, capsys: Any):
    """76, no terminal event of it now or from a later start: the newer attempt speaks for the job."""
    listener.desk.hear(said(9, 1, "job.accepted"))
    ended = run_fake("train(1000)", callbacks=control(listener))
    result = json.loads(ended.layout.result.read_text())

    assert (ended.code, result["status"], result["name"]) == (ExitCode.FENCED, "interrupted", "fenced")
    assert ended.events()[-1]["type"] == "job.interrupted"
    assert not (ended.layout.attempt(1) / "terminal.json").exists()
    assert events(["flush", str(ended.layout.root), "--job", str(run_fake.job)]) == 0
    assert "0 of 0 events delivered" in capsys.readouterr().out
    assert heard(listener) == ["job.accepted"]


def test_a_job_that_is_gone_is_canceled(run_fake: Any, listener: Listener):
    """410 in control mode."""
    listener.desk.always = Fault(410)

    assert run_fake("train(1000)", callbacks=control(listener)).code is ExitCode.CANCELED


def test_an_order_ends_a_download_from_a_silent_server(run_fake: Any, listener: Listener, serve: Any):
    """CASES L4: nothing arrives and nothing will; the order is noticed all the same."""
    silent = serve(lambda handler, request: silent.released.wait(120.0))
    listener.desk.always = Fault(503)
    as_soon_as(lambda: silent.received, lambda: setattr(listener.desk, "always", Fault(410)))
    started = time.monotonic()
    ended = run_fake(inputs={"dataset": f"{silent.url}/rows"}, callbacks=control(listener))

    assert ended.code is ExitCode.CANCELED
    assert time.monotonic() - started < 60.0


def test_one_terminal_event_whatever_happens_on_the_way(
    run_fake: Any, listener: Listener, monkeypatch: pytest.MonkeyPatch
):
    """A13 row 4: 413, then 503 and a kill, then a restart: one end, byte for byte the disk's."""
    monkeypatch.setenv("APP_TRAINER_ATTEMPT", "1")
    terminal = run_fake.layout.attempt(1) / "terminal.json"
    listener.desk.line_up([Fault(), Fault()])
    listener.desk.always = Fault(413)
    process = run_fake.start(FAILS, callbacks=control(listener))
    until(terminal.exists)
    listener.desk.always = Fault(503)
    time.sleep(0.2)
    process.kill()
    process.wait()
    listener.desk.always = Fault()

    options = ["--job", str(run_fake.job), "--job-dir", str(run_fake.layout.root)]
    assert [run(options), run(options)] == [70, 70]
    ends = [body for body, _ in listener.desk.deliveries if b'"job.failed"' in body]
    assert {*ends} == {terminal.read_bytes()}
    assert heard(listener).count("job.failed") == 1
    assert listener.desk.jobs()["j"].state == "failed"


def test_a_finished_job_tells_an_end_that_a_kill_cut_off(
    run_fake: Any, listener: Listener, monkeypatch: pytest.MonkeyPatch
):
    """Killed between result and terminal event: the next start has nothing to do but tell the end, once."""
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "0.1")
    listener.desk.always = Fault(500)
    ended = run_fake(SUCCEEDS, callbacks=control(listener))
    folder = ended.layout.attempt(1)
    (folder / "terminal.json").unlink()
    said = (folder / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "events.jsonl").write_text("".join(said[:-1]))
    listener.desk.always = Fault()
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "60")

    options = ["--job", str(run_fake.job), "--job-dir", str(ended.layout.root)]
    assert [run(options), run(options)] == [0, 0]
    record = listener.desk.jobs()["j"]
    assert (record.state, record.output_bytes, heard(listener).count("job.succeeded")) == ("succeeded", 77, 1)


def test_a_black_hole_does_not_slow_a_run(run_fake: Any, listener: Listener, monkeypatch: pytest.MonkeyPatch):
    """A13 row 12: it never answers; a thousand updates are made, the run ends well, all is on disk."""
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "0.1")
    monkeypatch.setenv("APP_TRAINER_MIN_EVENT_INTERVAL", "0")
    listener.desk.always = Fault.parse("hang")
    ended = run_fake(SUCCEEDS.replace("train(3)", "train(1000, 0.0)"), callbacks=control(listener))
    waiting = ended.events()

    assert ended.code is ExitCode.SUCCEEDED
    assert (waiting[-1]["type"], waiting[-1]["progress"]["step"]) == ("job.succeeded", 1000)
    assert heard(listener) == []
    assert "not every event was delivered" in ended.console.getvalue()


def test_nothing_that_is_secret_is_said_anywhere(
    run_fake: Any,
    listener: Listener,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Any,
    caplog: pytest.LogCaptureFixture,
):
    """Planted: token, signing secret, queries of URLs, and all that in an exception and its traceback."""
    secrets = ["planted-token", "whsec_cGxhbnRlZC1zZWNyZXQ=", "planted-key", "planted-input", "planted-weight"]
    monkeypatch.setenv("APP_TRAINER_CALLBACK_TOKEN", secrets[0])
    monkeypatch.setenv("APP_TRAINER_CALLBACK_SECRET", secrets[1])
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "1")
    (run_fake.job.parent / "rows.txt").write_text("rows")
    script = """
assert not [name for name in os.environ if "CALLBACK" in name]
start = open(sys.argv[1]).read()
text = f"GET https://h/rows?X-Amz-Signature=planted-input and planted-key {start}"
say("artifact", name=text)
leave(70, "failed", failure={"code": 70, "name": "internal_error", "message": text, "phase": "train", "step": 1,
    "origin": "system", "retry": "once", "traceback": "Traceback\\\\n" + text})
"""
    listener.desk.line_up([Fault(500), Fault(400)])
    weights = {"base": {"url": f"{listener.url}/uploads/w?sig=planted-weight", "revision": "r"}}
    inputs = {"dataset": {"url": f"{listener.url}/uploads/rows?token=planted-input"}}
    for name in ("w", "rows"):
        (listener.desk.uploads).mkdir(parents=True, exist_ok=True)
        (listener.desk.uploads / name).write_bytes(b"x")
    ended = run_fake(script, callbacks=control(listener), inputs=inputs, weights=weights)
    out = "".join(capfd.readouterr()) + ended.console.getvalue() + caplog.text
    files = {path: path.read_text(errors="replace") for path in ended.layout.root.rglob("*") if path.is_file()}

    assert ended.code is ExitCode.INTERNAL_ERROR, ended.console.getvalue()
    assert "[redacted]" in json.loads(ended.layout.result.read_text())["failure"]["message"]
    for secret in secrets:
        assert secret not in out
        assert [path.name for path, text in files.items() if secret in text] in ([], ["outcome-0.json"])
