"""The process that asks an artifact again: its answers, and what it does not do."""

from __future__ import annotations

import json

import pytest
from torch_helpers import StillProbe, drive_opened

from app_trainer_sdk.start import Start
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.opening import open_job, prepare, settle_plan, store_of
from app_trainer_sdk.training.replay import main


@pytest.fixture
def exported(tmp_path):
    """A start whose artifact was written."""
    job = {
        "schema": "app.trainer.job/v1", "job_id": "j", "trainer": "app_trainer_sdk.testing.toys:ToyTrainer",
        "model": "toy-mlp", "hyperparameters": {"rows": 8, "updates": 1, "global_batch": 4},
    }  # fmt: skip
    start = Start(directory=str(tmp_path / "job"), attempt=1, cache=str(tmp_path / "cache"), job=job)
    path = start.save()
    ledger = Ledger(StillProbe(), lambda row: None, policy="report")
    opened = open_job(start, ledger=ledger, check=lambda: None, progress=lambda *_: None)
    store = store_of(start.layout, start)
    plan, _ = settle_plan(opened, start, store)
    opened = prepare(opened, plan, ledger)
    drive_opened(opened, start, plan, store)
    start.layout.artifacts.mkdir()
    from app_trainer_sdk.training.checkpoint import load_checkpoint

    artifact = opened.trainer.export(opened.run, load_checkpoint(store.newest()[0]), start.layout.artifacts)
    return path, start, artifact


def test_answers_are_those_before_export(tmp_path, exported):
    """Asked through files, the artifact answers what export expected, in order."""
    path, start, artifact = exported
    question, answer = tmp_path / "question.json", tmp_path / "answer.json"
    question.write_text(json.dumps({"artifact": artifact.name, "controls": artifact.controls}))
    before = {each for each in start.layout.root.rglob("*") if each.is_file()}
    code = main([str(path), str(question), str(answer)])

    assert (code, json.loads(answer.read_text())) == (0, list(artifact.expected))
    assert {each for each in start.layout.root.rglob("*") if each.is_file()} == before


def test_a_missing_artifact_is_an_error(tmp_path, exported):
    """An artifact that is not there fails the process: no answer is left that could be taken for one."""
    path, _, artifact = exported
    question, answer = tmp_path / "question.json", tmp_path / "answer.json"
    question.write_text(json.dumps({"artifact": "other", "controls": artifact.controls}))
    with pytest.raises(FileNotFoundError):
        main([str(path), str(question), str(answer)])

    assert not answer.exists()
