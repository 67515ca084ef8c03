"""Opening a job in a rank: the plan of a fresh start, and what a resume may and may not change."""

from __future__ import annotations

import dataclasses
import json
import shutil
import types

import pytest
from torch_helpers import StillProbe, drive_opened, make_trainer

from app_trainer_sdk.errors import BadData, BadJob, InternalError
from app_trainer_sdk.plan import Plan
from app_trainer_sdk.start import Start
from app_trainer_sdk.training.memory import Ledger
from app_trainer_sdk.training.opening import _refuse_ranks, open_job, prepare, settle_plan, store_of

SETTINGS = {"rows": 12, "validation_rows": 0, "updates": 3, "global_batch": 4, "checkpoint_every": 1}


def start_of(directory, attempt=1, **settings):
    directory.mkdir(exist_ok=True)
    job = {
        "schema": "app.trainer.job/v1", "job_id": "j", "trainer": "app_trainer_sdk.testing.toys:ToyTrainer",
        "model": "toy-mlp", "hyperparameters": {**SETTINGS, **settings},
    }  # fmt: skip
    return Start(directory=str(directory), attempt=attempt, cache=str(directory / "cache"), job=job)


def opened(start):
    ledger = Ledger(StillProbe(), lambda row: None, policy="report")
    return open_job(start, ledger=ledger, check=lambda: None, progress=lambda *_: None), ledger


def trained(start, *, stop_at=0):
    """Open, plan, prepare and train; the plan used."""
    job, ledger = opened(start)
    store = store_of(start.layout, start)
    plan, _ = settle_plan(job, start, store)
    drive_opened(prepare(job, plan, ledger), start, plan, store, stop_at=stop_at)
    return plan


def settled(start):
    job, _ = opened(start)
    return settle_plan(job, start, store_of(start.layout, start))


def test_a_fresh_plan_is_written(tmp_path):
    """The plan of a first start is resolved from job, data and device, and lies in the job's directory."""
    start = start_of(tmp_path)
    plan, checkpoint = settled(start)

    assert (plan.updates, plan.examples_per_update, plan.rows, checkpoint) == (3, 4, 12, None)
    assert Plan.from_document(json.loads(start.layout.plan.read_text())) == plan


def test_settings_are_decided(tmp_path):
    """Once prepared, no setting the trainer sees is ``auto``."""
    start = start_of(tmp_path)
    job, ledger = opened(start)
    plan, _ = settle_plan(job, start, store_of(start.layout, start))
    run = prepare(job, plan, ledger).run

    assert "auto" not in run.settings.model_dump().values()
    assert str(run.dtype) == "torch.float32"


def test_a_resume_uses_the_saved_plan(tmp_path):
    """A second start finds the newest checkpoint and its plan, cadence aside."""
    first = trained(start_of(tmp_path), stop_at=4)
    plan, checkpoint = settled(start_of(tmp_path, attempt=2, checkpoint_every=2, evaluate_every=1))

    assert checkpoint.step == 2
    assert plan.settings["checkpoint_every"].effective == 2
    assert plan.settings["evaluate_every"].effective == 1
    assert dataclasses.replace(plan, settings={}) == dataclasses.replace(first, settings={})


@pytest.mark.parametrize(
    ("change", "field", "saved", "now"),
    [
        ({"seed": 7}, "settings/seed", "42", "7"),
        ({"rows": 16}, "dataset", "'toy-12'", "'toy-16'"),
        ({"learning_rate": 0.5}, "settings/learning_rate", "0.001", "0.5"),
        ({"updates": 4}, "settings/updates", "3", "4"),
    ],
)
def test_a_changed_job_is_refused(tmp_path, change, field, saved, now):
    """B6: a resume that would not be exact is refused before a weight is loaded, field by field."""
    trained(start_of(tmp_path), stop_at=4)
    with pytest.raises(BadJob, match="differs from step-00000002") as told:
        settled(start_of(tmp_path, attempt=2, **change))
    problems = {problem.pointer: problem for problem in told.value.problems}

    assert problems[field].found == now
    assert problems[field].expected.startswith(saved)


def test_only_damaged_checkpoints(tmp_path):
    """B6: when no checkpoint of the job is whole it is not started over in silence: each is named with why."""
    start = start_of(tmp_path)
    trained(start, stop_at=4)
    for folder in start.layout.checkpoints.iterdir():
        (folder / "model.safetensors").unlink()
    with pytest.raises(
        InternalError, match=r"step-00000002: model\.safetensors is missing.*remove it to start"
    ):
        settled(start)

    shutil.rmtree(start.layout.checkpoints)

    assert settled(start)[1] is None


def test_no_rows(tmp_path):
    """I3: an empty training split is bad data, told before anything is loaded."""
    with pytest.raises(BadData, match="the training split has no rows"):
        opened(start_of(tmp_path, rows=0))


def test_too_few_rows(tmp_path):
    """I3: five rows and a batch of eight are told with both numbers."""
    with pytest.raises(BadData, match="has 5 rows and one update takes 8"):
        settled(start_of(tmp_path, rows=5, global_batch=8))


@pytest.mark.parametrize(
    ("trainer", "why"),
    [
        (types.SimpleNamespace(name="one"), "has a loop of its own"),
        (make_trainer(lambda run: None, None, [1.0], name="one", coupled_rows=True)(), "see each other"),
    ],
)
def test_trainers_that_train_on_one_rank(trainer, why):
    """What the ordinary loop cannot share between ranks is refused, with the option to change."""
    _refuse_ranks(trainer, 1)
    with pytest.raises(BadJob, match=f"2 ranks, and the trainer one .*{why}.*change --ranks"):
        _refuse_ranks(trainer, 2)


@pytest.mark.parametrize("text", [None, "{", "[]", "{}", "null"])
def test_a_plan_that_is_no_plan_is_written_again(tmp_path, text):
    """Before the first checkpoint and on a resume: the replay reads the plan, so it must be there and whole."""
    start = start_of(tmp_path)
    for begun in (False, True):
        if begun:
            trained(start)
        if text is None:
            start.layout.plan.unlink(missing_ok=True)
        else:
            start.layout.plan.write_text(text)
        plan, checkpoint = settled(start)

        assert (checkpoint is not None) == begun
        assert Plan.from_document(json.loads(start.layout.plan.read_text())) == plan
