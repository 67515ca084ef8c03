"""A platform reads the end of a job where it looks: Kubernetes' termination log, SageMaker's failure file."""

from __future__ import annotations

from pathlib import Path

import pytest

from app_trainer_sdk.callbacks.last_words import leave_last_words
from app_trainer_sdk.events import Event, encode_event

FAILED = encode_event(
    {
        "id": "j.1.9", "seq": 9, "type": "job.failed", "code": 79,
        "failure": {"name": "gpu_out_of_memory", "message": "why"},
    }
)  # fmt: skip
SUCCEEDED = encode_event({"id": "j.1.9", "seq": 9, "type": "job.succeeded", "code": 0})


def leave(event: Event, folder: Path, **environment: str) -> dict[str, bytes]:
    leave_last_words(event, environment, failure_file=folder / "failure", termination_log=folder / "log")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_kubernetes_reads_the_event_itself(tmp_path: Path):
    """The default path where the platform made it, and the one that a variable names; at most 4 KiB anyway."""
    assert leave(FAILED, tmp_path) == {}
    (tmp_path / "log").touch()
    assert leave(FAILED, tmp_path) == {"log": FAILED.body}
    chosen = str(tmp_path / "chosen")
    assert leave(SUCCEEDED, tmp_path, APP_TRAINER_TERMINATION_LOG=chosen)["chosen"] == SUCCEEDED.body


@pytest.mark.parametrize(("event", "there"), [(FAILED, True), (SUCCEEDED, False)])
def test_sagemaker_reads_a_reason_when_it_failed(tmp_path: Path, event: Event, there: bool):
    """A file there means a failure, so success leaves none; its beginning is for people."""
    written = leave(event, tmp_path, TRAINING_JOB_NAME="x")

    assert ("failure" in written) == there
    if there:
        assert written["failure"] == b"gpu_out_of_memory (79): why\n" + FAILED.body


def test_a_full_disk_there_changes_nothing(caplog: pytest.LogCaptureFixture):
    """A13 row 1: SageMaker's failure file on a full disk; the run's code is not this file's business."""
    assert (
        leave_last_words(FAILED, {"APP_TRAINER_TERMINATION_LOG": "/dev/full"}, termination_log=Path("/none"))
        == []
    )
    assert "not copied to /dev/full" in caplog.text
