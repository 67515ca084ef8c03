"""What a rank needs to begin is written by the supervisor and read back whole."""

from __future__ import annotations

from pathlib import Path

from app_trainer_sdk.job import read_job
from app_trainer_sdk.start import Start


def test_a_start_reads_back(tmp_path: Path):
    """It lies in the attempt's folder; the job in it is the job that was accepted."""
    job = read_job(
        {"trainer": "text", "model": "m", "inputs": {"dataset": "/a"}, "callbacks": "https://host/x"}
    )
    start = Start(
        directory=str(tmp_path), attempt=3, cache="/c", job=job.document(), inputs={"dataset": "/a"},
        weights={"base": "/w"}, weights_identity={"base": "r1"}, ranks=2, allow_changes=["threads"],
    )  # fmt: skip
    path = start.save()

    assert tmp_path / "attempts" / "3" / "start.json" == path
    assert start == Start.load(path)
    assert job == Start.load(path).read_job()
    assert tmp_path == Start.load(path).layout.root
