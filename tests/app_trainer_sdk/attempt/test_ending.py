"""The end is told for as long as somebody counts on it, and nobody who is in a hurry has to wait."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from process_helpers import start_supervisor, wait_for

from app_trainer_sdk.attempt.ending import delivery_seconds
from app_trainer_sdk.events import read_terminal
from app_trainer_sdk.job import read_job

NOBODY = "http://127.0.0.1:9/events"


@pytest.mark.parametrize(
    ("callbacks", "asked", "seconds"),
    [({"url": NOBODY, "mode": "control"}, None, 900.0), ({"url": NOBODY}, None, 15.0), (None, None, 15.0),
     ({"url": NOBODY, "mode": "control"}, "3", 3.0)],
)  # fmt: skip
def test_a_control_plane_is_waited_for_longer_than_a_webhook(callbacks, asked, seconds, monkeypatch):
    """A1: 900 s for a control plane that is away; the environment says otherwise where it wants."""
    monkeypatch.delenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", raising=False)
    if asked is not None:
        monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", asked)
    job = read_job({"trainer": "t", "model": "m", "callbacks": callbacks})

    assert delivery_seconds(job) == seconds


def test_a_signal_ends_the_wait_for_a_control_plane(tmp_path: Path):
    """^C after the work is done: the run has succeeded, its end lies on the disk, and nobody waits 900 s."""
    callbacks = {"url": NOBODY, "mode": "control"}
    process = start_supervisor(
        tmp_path, "leave(0, outputs=[])", job={"callbacks": callbacks},
        environment={"APP_TRAINER_GRACE_SECONDS": "5", "APP_TRAINER_ATTEMPT": "1"},
    )  # fmt: skip
    folder = tmp_path / "dir" / "attempts" / "1"
    wait_for(folder / "terminal.json")
    time.sleep(0.5)
    waits = process.poll() is None
    process.send_signal(signal.SIGINT)

    assert process.wait(60) == 0
    assert waits
    assert read_terminal(folder).type == "job.succeeded"
