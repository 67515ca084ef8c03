"""What an earlier attempt made is found when sending it is all that is left, and only then."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk.files import sha256_tree
from app_trainer_sdk.job import Job, read_job
from app_trainer_sdk.outputs.made import made_before, only_unsent
from app_trainer_sdk.paths import JobDirectory

DOCUMENT = {
    "trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp", "job_id": "j",
    "outputs": {"grant_url": "https://desk/grants"}, "hyperparameters": {"updates": 3},
}  # fmt: skip


def job(**other: Any) -> Job:
    return read_job({**DOCUMENT, **other})


@pytest.fixture
def layout(tmp_path: Path) -> JobDirectory:
    """A job whose first attempt trained, made an artifact and could not send it."""
    layout = JobDirectory(tmp_path)
    layout.job.write_text(json.dumps(job().document()))
    weights = layout.artifacts / "weights"
    weights.mkdir(parents=True)
    (weights / "model.bin").write_bytes(b"w" * 100)
    attempt(layout, 1, trained=True)
    write(layout.result, result(layout, attempt=1))
    return layout


def attempt(layout: JobDirectory, number: int, *, trained: bool) -> Path:
    folder = layout.attempt(number)
    folder.mkdir(parents=True)
    if trained:
        write(folder / "start.json", {})
    return folder


def result(layout: JobDirectory, **facts: Any) -> dict[str, Any]:
    digest, size = sha256_tree(layout.artifacts / "weights")
    output = {"name": "weights", "path": "artifacts/weights", "bytes": size, "sha256": digest, "stored": False}
    return {
        "status": "failed",
        "exit_code": 74,
        "name": "upload_failed",
        "step": 3,
        "outputs": [output],
        **facts,
    }


def write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document))


def test_after_an_upload_that_failed(layout: JobDirectory):
    """What the run said of itself is kept, and how that attempt ended is not."""
    found = only_unsent(layout, job())

    assert found is not None
    assert found == made_before(layout)
    assert (found["step"], found["outputs"][0]["name"]) == (3, "weights")
    assert not found.keys() & {"status", "exit_code", "name", "failure", "attempt"}


def test_where_to_and_whom_to_tell_may_be_others(layout: JobDirectory):
    """They have no say in what is made."""
    other = job(outputs={"put": {"weights/model.bin": "https://store/x"}}, callbacks="https://desk/events")

    assert only_unsent(layout, other) is not None


def test_another_job_is_run(layout: JobDirectory):
    """More updates under the same name are not made yet."""
    assert only_unsent(layout, job(hyperparameters={"updates": 4})) is None


def test_other_bytes_are_made_again(layout: JobDirectory):
    """Nobody sends what the run did not make."""
    (layout.artifacts / "weights" / "model.bin").write_bytes(b"other")

    assert only_unsent(layout, job()) is None


def test_an_attempt_that_only_sent_changes_nothing(layout: JobDirectory):
    """Killed, interrupted, or failed before it began to train: what the first one made is still there."""
    write(layout.attempt(1) / "result.json", result(layout, attempt=1))
    attempt(layout, 2, trained=False)
    write(layout.result, result(layout, attempt=2, exit_code=75, outputs=[]))

    assert only_unsent(layout, job()) is not None
    layout.result.unlink()
    attempt(layout, 10, trained=False)
    assert only_unsent(layout, job()) is not None


def test_training_since_then_is_gone_on_with(layout: JobDirectory):
    """Artifacts of before are not its."""
    attempt(layout, 2, trained=True)

    assert only_unsent(layout, job()) is None
    assert made_before(layout)["step"] == 3  # who asks for the upload gets it


@pytest.mark.parametrize("said", [None, "{", json.dumps({"exit_code": 70, "outputs": None})])
def test_who_said_nothing_made_nothing(layout: JobDirectory, said: str | None):
    """Killed while training, or failed; a broken file is no reason to fail."""
    layout.result.unlink()
    if said is not None:
        (layout.attempt(1) / "outcome-0.json").write_text(said)

    assert only_unsent(layout, job()) is None


def test_the_ranks_own_word_will_do(layout: JobDirectory):
    """Who was killed while uploading has told no result."""
    layout.result.rename(layout.attempt(1) / "outcome-0.json")

    assert only_unsent(layout, job()) is not None


def test_a_new_directory_has_nothing(tmp_path: Path):
    """No job, no attempts."""
    assert only_unsent(JobDirectory(tmp_path), job()) is None
