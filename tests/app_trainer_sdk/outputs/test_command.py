"""``app-trainer upload`` ends a job well whose artifacts are made, and tells what it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from outputs_ranks import DONE, MAKES, job_of
from process_helpers import TOY, supervise
from receivers import Receiver

from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import BadJob, ExitCode
from app_trainer_sdk.listener.desk import SILENT, Fault
from app_trainer_sdk.outputs.command import main, upload_job
from app_trainer_sdk.paths import JobDirectory

pytestmark = pytest.mark.usefixtures("quick")


def test_an_upload_that_fails_for_ever_is_74_and_is_finished_later(tmp_path: Path, receiver: Receiver):
    """Files are kept, nothing is listed; app-trainer upload ends the job well, once."""
    receiver.store.faults.extend([Fault(500)] * 1000)
    told = supervise(tmp_path, DONE, job=job_of(receiver))
    failed = told.result
    receiver.store.faults.clear()
    layout = JobDirectory(told.directory)
    code = upload_job(told.directory, None, Console())
    terminal = json.loads((layout.attempt(2) / "terminal.json").read_text())
    result = told.result

    assert (told.code, failed["failure"]["retry"], failed["status"]) == (74, "upload only", "failed")
    assert (told.last["type"], told.last["outputs"]["count"]) == ("job.failed", 0)
    assert [each["stored"] for each in failed["outputs"]] == [False]
    assert "app-trainer upload" in told.console
    assert code is ExitCode.SUCCEEDED
    assert (terminal["type"], terminal["outputs"]["count"], terminal["attempt"]) == ("job.succeeded", 1, 2)
    assert (result["status"], result["step"], result["stored"]) == ("succeeded", 3, {"artifacts": 1000})
    assert receiver.stored("artifact", "weights", "model.bin") == b"w" * 1000
    assert upload_job(told.directory, None, Console()) is ExitCode.SUCCEEDED
    assert not layout.attempt(3).exists()


def test_upload_again_that_fails_again_is_74_again(tmp_path: Path, receiver: Receiver):
    """Each try is an attempt; what an earlier one made is found again."""
    receiver.store.faults.extend([Fault(500)] * 1000)
    told = supervise(tmp_path, DONE, job=job_of(receiver))

    assert upload_job(told.directory, None, Console()) is ExitCode.UPLOAD_FAILED
    receiver.store.faults.clear()
    assert main([str(told.directory)]) == 0


def test_who_is_killed_while_uploading_can_be_finished(tmp_path: Path, receiver: Receiver):
    """SIGKILL of the supervisor in the middle: no result, no last event; what the rank made is uploaded."""
    receiver.store.faults.extend([Fault(SILENT)])
    (tmp_path / "job.json").write_text(json.dumps({**TOY, **job_of(receiver)}))
    code = "import sys, pathlib, json, process_helpers as h; folder = pathlib.Path(sys.argv[1]); "
    code += "h.supervise(folder, sys.argv[2], job=json.loads((folder / 'job.json').read_text()))"
    paths = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), DONE], env={**os.environ, "PYTHONPATH": paths}
    )
    try:
        limit = time.monotonic() + 60.0
        while receiver.store.faults:
            assert time.monotonic() < limit, "the upload never began"
            time.sleep(0.02)
    finally:  # it would wait for ever for an answer
        child.kill()
        child.wait()

    assert not (tmp_path / "dir" / "result.json").exists()
    assert upload_job(tmp_path / "dir", None, Console()) is ExitCode.SUCCEEDED
    assert receiver.stored("artifact", "weights", "model.bin") == b"w" * 1000


def test_what_cannot_be_uploaded_later_is_told(tmp_path: Path, receiver: Receiver):
    """No job, nothing made, artifacts that were changed, or a URL whose secret is not kept."""
    with pytest.raises(BadJob, match="no job in"):
        upload_job(tmp_path, None, Console())
    told = supervise(tmp_path, MAKES + "leave(70, 'internal_error')", job=job_of(receiver))
    with pytest.raises(BadJob, match="nothing to upload"):
        upload_job(told.directory, None, Console())
    again = tmp_path / "again"
    again.mkdir()
    receiver.store.faults.extend([Fault(500)] * 1000)
    told = supervise(
        again, DONE, job={"job_id": "j", "outputs": {"grant_url": receiver.grant_url + "?key=secret-key"}}
    )
    with pytest.raises(BadJob, match="query of a URL is a secret"):
        upload_job(told.directory, None, Console())
    (told.directory / "artifacts" / "weights" / "model.bin").write_bytes(b"other")
    with pytest.raises(BadJob, match=r"is not what result.json says"):
        upload_job(told.directory, again / "job.json", Console())
