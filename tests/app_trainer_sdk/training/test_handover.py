"""Handing over: artifacts appear whole, and one that answers otherwise in a new process is no artifact."""

from __future__ import annotations

import pytest
from torch_helpers import CountingToken, RecordingChannel

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.start import Start
from app_trainer_sdk.training.handover import ask_again, export_artifacts
from app_trainer_sdk.training.rank import Rank
from app_trainer_sdk.values import Artifact


class Exporter:
    """What a trainer's export does, by hand."""

    def __init__(self, names):
        self.names = names
        self.artifacts = {"full": ("weights",)}

    def export(self, run, saved, directory):
        for name in self.names:
            (directory / name).mkdir()
        return Artifact("weights")


class Handed:
    """As much of an opened job as export needs."""

    class run:  # noqa: N801 - stands in for the handle
        method = "full"

    def __init__(self, trainer):
        self.trainer = trainer


def test_an_artifact_that_was_not_written(tmp_path):
    """An export without its declared folder is refused, and what was handed over before stays."""
    layout = JobDirectory(tmp_path)
    export_artifacts(Handed(Exporter(["weights"])), None, layout)
    with pytest.raises(InternalError, match="export wrote no folder weights; expected weights"):
        export_artifacts(Handed(Exporter(["other"])), None, layout)

    assert [each.name for each in (tmp_path / "artifacts").iterdir()] == ["weights"]


def test_an_artifact_that_answers_otherwise(tmp_path):
    """An artifact whose answers in a new process differ from those before export is not handed over as good."""
    job = {
        "schema": "app.trainer.job/v1", "job_id": "j", "trainer": "app_trainer_sdk.testing.toys:ToyTrainer",
        "model": "toy-mlp",
        "hyperparameters": {"rows": 12, "validation_rows": 3, "updates": 2, "global_batch": 4},
    }  # fmt: skip
    start = Start(directory=str(tmp_path), attempt=1, cache=str(tmp_path / "cache"), job=job)
    start.save()
    token = CountingToken()
    Rank(start, RecordingChannel(token), token).work()
    wrong = Artifact("weights", controls=[[0.1] * 8], expected=[123.0])

    assert ask_again(Artifact("weights"), start, token.check) == {"asked": 0, "same": True}
    with pytest.raises(InternalError, match=r"answers \[.*\]; expected \[123.0\], as before export"):
        ask_again(wrong, start, token.check)
