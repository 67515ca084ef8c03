"""An empty disk gets the checkpoint that the job names, whole and the right one, or a clear error."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from loopback import free

from app_trainer_sdk.checkpoints import inspect_checkpoint
from app_trainer_sdk.errors import BadJob, InputMissing
from app_trainer_sdk.job import Job, read_job
from app_trainer_sdk.outputs.remote import fetch_resume
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.transfers.progress import NoListener

TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}


def made(folder: Path, step: int, run: str = "j") -> Path:
    """A checkpoint on some other disk."""
    place = folder / f"step-{step:08d}"
    place.mkdir(parents=True)
    files = {"model.safetensors": b"same", "ema.safetensors": b"same", "identity.json": b"{}\n"}
    for name, data in files.items():
        (place / name).write_bytes(data)
    listed = {name: {"size": len(data), "sha256": sha(data)} for name, data in files.items()}
    manifest = {"schema": "app.trainer.checkpoint/v1", "run": run, "step": step, "files": listed}
    (place / "manifest.json").write_text(json.dumps(manifest))
    return place


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def job_of(*folders: Path, step: int, named: bool = True, **resume: Any) -> Job:
    """A job that resumes from these."""
    files = [
        {
            "path": f"{folder.name}/{path.name}" if named else path.name, "size": path.stat().st_size,
            "sha256": sha(path.read_bytes()), "url": path.as_uri(),
        }
        for folder in folders
        for path in sorted(folder.iterdir())
    ]  # fmt: skip
    return read_job({**TOY, "job_id": "j", "resume": {"step": step, "files": files, **resume}})


@pytest.mark.parametrize("named", [True, False])
def test_the_checkpoint_is_there_as_if_it_had_been_made_here(tmp_path: Path, named: bool):
    """Also two files of one content; nothing of the way is left."""
    layout = JobDirectory(tmp_path / "dir")
    job = job_of(made(tmp_path / "far", 4), step=4, named=named, identity="sha256:" + sha(b"{}\n"))

    assert fetch_resume(job, layout, free, told=NoListener()) == 4
    assert inspect_checkpoint(layout.checkpoints / "step-00000004").problem == ""
    assert [each.name for each in layout.checkpoints.iterdir()] == ["step-00000004"]
    assert fetch_resume(job, layout, free, told=NoListener()) is None


def test_the_best_one_comes_along(tmp_path: Path):
    """Two checkpoints in one document."""
    layout = JobDirectory(tmp_path / "dir")
    job = job_of(made(tmp_path / "far", 2), made(tmp_path / "far", 4), step=4)

    assert fetch_resume(job, layout, free, told=NoListener()) == 4
    assert len(list(layout.checkpoints.iterdir())) == 2


def test_the_runs_rows_come_along_and_nothing_else(tmp_path: Path):
    """Curves go on; a file with another name, or one that is here already, changes nothing."""
    layout, folder = JobDirectory(tmp_path / "dir"), made(tmp_path / "far", 4)
    job, files = job_of(folder, step=4), []
    for name in ("metrics.jsonl", "phases.jsonl", "job.json"):
        path = tmp_path / name
        path.write_text("far")
        files.append(
            {"path": f"step-00000004/rows/{name}", "url": path.as_uri(), "size": 3, "sha256": sha(b"far")}
        )
    layout.root.mkdir()
    layout.phases.write_text("here")
    document = job.document()
    document["resume"]["files"] += files
    fetch_resume(read_job(document), layout, free, told=NoListener())

    assert (layout.metrics.read_text(), layout.phases.read_text()) == ("far", "here")
    assert not layout.job.exists()
    assert not (layout.checkpoints / "step-00000004" / "rows").exists()


def test_a_local_checkpoint_that_is_as_new_is_kept(tmp_path: Path):
    """A restart on the same disk downloads nothing."""
    layout = JobDirectory(tmp_path / "dir")
    made(layout.checkpoints, 6)

    assert fetch_resume(job_of(made(tmp_path / "far", 4), step=4), layout, free, told=NoListener()) is None


@pytest.mark.parametrize(
    ("run", "lost", "resume", "error", "words"),
    [
        ("other", "", {}, BadJob, "is of job other"),
        ("j", "ema.safetensors", {}, InputMissing, r"not whole: ema.safetensors is missing"),
        ("j", "manifest.json", {}, InputMissing, "not whole: it has no manifest"),
        ("j", "", {"identity": "sha256:" + "0" * 64}, BadJob, "has the identity"),
    ],
)
def test_one_that_is_not_meant_is_refused(
    tmp_path: Path, run: str, lost: str, resume: dict[str, Any], error: type[Exception], words: str
):
    """And gets no name here."""
    folder, layout = made(tmp_path / "far", 4, run), JobDirectory(tmp_path / "dir")
    if lost:
        (folder / lost).unlink()
    with pytest.raises(error, match=words):
        fetch_resume(job_of(folder, step=4, **resume), layout, free, told=NoListener())

    assert not list(layout.checkpoints.glob("step-*"))


def test_a_job_without_one_begins_anew(tmp_path: Path):
    """Nothing is made on the disk."""
    assert fetch_resume(read_job(TOY), JobDirectory(tmp_path / "dir"), free, told=NoListener()) is None
    assert not (tmp_path / "dir").exists()
