"""A disk that fills while a job runs: the end is told all the same, with its code."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from process_helpers import start_supervisor

from app_trainer_sdk.listener.desk import Desk
from app_trainer_sdk.listener.server import Listener

#: A small disk of the job's own, where what follows runs.
DISK = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
        'mount -t tmpfs -o size=2m none "$0" && exec "$@"')  # fmt: skip
PERMITTED = subprocess.run([*DISK, "/mnt", "true"], check=False, capture_output=True).returncode == 0
FILL = """
try:
    with open(folder.parent.parent / "rows", "wb") as file:
        while True:
            file.write(b"x" * 4096)
except OSError as error:
    say("outcome", status="failed", exit_code=73, name="disk_full", failure=fail(73, str(error)))
    os._exit(73)
"""


@pytest.mark.skipif(not PERMITTED, reason="no namespaces of mounts are permitted here")
def test_a_full_disk_is_told(tmp_path: Path):
    """A13 row 1: 73 and never 0; the control plane hears the end, though no file takes it any more."""
    (tmp_path / "dir").mkdir()
    with Listener(Desk(tmp_path / "listener")) as listener:
        job = {"job_id": "full", "callbacks": {"url": f"{listener.url}/events", "mode": "control"}}
        process = start_supervisor(
            tmp_path, FILL, below=(*DISK, str(tmp_path / "dir")), job=job,
            environment={"APP_TRAINER_ALLOW_HOSTS": "127.0.0.1"},
        )  # fmt: skip
        code = process.wait(120)
        record = listener.desk.jobs()["full"]

    assert code == 73
    assert (record.state, record.code) == ("failed", 73)
    assert listener.desk.events("full")[-1]["failure"]["message"].startswith("[Errno 28] No space left")


@pytest.mark.skipif(not PERMITTED, reason="no namespaces of mounts are permitted here")
def test_what_a_small_disk_cannot_hold_is_not_asked_for(tmp_path: Path, serve: Any):
    """A13 row 7: a disk of 2 MiB and inputs of 8: 73, and their server is sent nothing and sends nothing."""
    (tmp_path / "dir").mkdir()
    server = serve(lambda handler, request: None)
    inputs = {"dataset": {"url": f"{server.url}/rows", "size": 8 << 20}}
    with Listener(Desk(tmp_path / "listener")) as listener:
        callbacks = {"url": f"{listener.url}/events", "mode": "control"}
        process = start_supervisor(
            tmp_path, "", below=(*DISK, str(tmp_path / "dir")),
            job={"job_id": "small", "inputs": inputs, "callbacks": callbacks},
            environment={"APP_TRAINER_ALLOW_HOSTS": "127.0.0.1"},
        )  # fmt: skip
        code = process.wait(120)
        told = listener.desk.events("small")[-1]

    assert (code, told["failure"]["phase"], told["failure"]["name"]) == (73, "preflight", "disk_full")
    assert server.received == []
