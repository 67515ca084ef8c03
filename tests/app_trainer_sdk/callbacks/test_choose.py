"""Who hears of a run: the job's URL, and what the platform asks for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from loopback import reply

from app_trainer_sdk.errors import BadJob, ExitCode


def test_json_lines_on_standard_output(run_fake: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    """Each event as a line, byte for byte as on the disk; ``none`` and empty names are nobody."""
    monkeypatch.setenv("APP_TRAINER_SINKS", "none, stdout,,stdout")
    run = run_fake()

    assert run.code is ExitCode.SUCCEEDED
    assert capsys.readouterr().out == (run.layout.attempt(1) / "events.jsonl").read_text()
    assert not (run.layout.attempt(1) / "delivered.jsonl").exists()


def test_wrong_credentials_end_a_start_before_it_began(run_fake: Any, monkeypatch: pytest.MonkeyPatch):
    """64: nobody would hear of this run, though somebody is to."""
    monkeypatch.setenv("APP_TRAINER_CALLBACK_TOKEN_FILE", "/no/such/file")
    with pytest.raises(BadJob, match="CALLBACK_TOKEN_FILE"):
        run_fake(callbacks="http://127.0.0.1:9/hook")


FAILURE = {"code": 70, "message": "m", "phase": "train", "origin": "system", "retry": "once"}


def test_the_next_start_tells_what_the_last_did_not(run_fake: Any, serve: Any, monkeypatch: Any):
    """A receiver that was away hears of attempt 1 first, its end byte for byte, then of attempt 2."""
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "0.2")
    first = run_fake(f"leave(70, 'failed', failure={FAILURE})", callbacks="http://127.0.0.1:9/hook")
    assert first.code is ExitCode.INTERNAL_ERROR
    assert "not every event was delivered" in first.console.getvalue()

    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "60")
    server = serve(lambda handler, request: reply(handler))
    run_fake(callbacks=f"{server.url}/hook")
    heard = [json.loads(request.body) for request in server.received]

    assert [event["attempt"] for event in heard] == sorted(event["attempt"] for event in heard)
    assert [event["type"] for event in heard if event["attempt"] == 1] == [
        "job.accepted",
        "job.phase",
        "job.failed",
    ]
    assert (first.layout.attempt(1) / "terminal.json").read_bytes() in [
        request.body for request in server.received
    ]
    assert heard[-1]["type"] == "job.succeeded"
