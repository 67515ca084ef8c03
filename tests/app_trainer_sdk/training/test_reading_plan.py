"""The plan says who reads: measured at the first start, kept by those that follow, the same for all ranks."""

from __future__ import annotations

import dataclasses
import json

from test_opening import OWN_LOOP, opened, start_of
from torch_helpers import drive_opened

from app_trainer_sdk.plan import Plan
from app_trainer_sdk.planning.workers import Reading
from app_trainer_sdk.training.opening import prepare, settle_plan, store_of
from app_trainer_sdk.training.reading_plan import settle_reading

HEAVY = Reading(rows=6, item_seconds=0.05, collate_seconds=0.001, copy_seconds=1e-4, row_bytes=100)
ROOM = {"cores": 2, "shared_memory_bytes": 8 << 30, "host_memory_bytes": 8 << 30}


class Measuring:
    """Says what a test says, and counts."""

    def __init__(self, reading=HEAVY):
        self.reading, self.runs = reading, []

    def __call__(self, trainer, run):
        self.runs.append(run)
        return self.reading


def settled(start, measure, *, rank=0, **room):
    job, ledger = opened(start)
    job = dataclasses.replace(job, facts=dataclasses.replace(job.facts, **{**ROOM, **room}))
    store = store_of(start.layout, start)
    plan, checkpoint = settle_plan(job, start, store, writes=rank == 0)
    resumed = checkpoint is not None
    return settle_reading(job, plan, start, resumed=resumed, rank=rank, measure=measure), job, ledger, store


def written(start):
    return Plan.from_document(json.loads(start.layout.plan.read_text()))


def test_a_first_start_measures_with_decided_settings(tmp_path):
    """The knob, its reason and the numbers are in the plan that is written; the batch is the run's."""
    start, measure = start_of(tmp_path), Measuring()
    plan, *_ = settled(start, measure)

    assert plan.settings["dataloader_workers"].requested == "auto"
    assert plan.settings["dataloader_workers"].effective == 2
    assert "6 rows measured here" in plan.settings["dataloader_workers"].why
    assert Reading.from_document(plan.reading) == HEAVY
    assert written(start) == plan
    assert "auto" not in measure.runs[0].settings.model_dump().values()


def test_who_asks_for_a_number_gets_it_unmeasured(tmp_path):
    """Nor is anything measured for a trainer with a loop of its own."""
    measure = Measuring()
    asked, *_ = settled(start_of(tmp_path / "a", dataloader_workers=1), measure)
    own, *_ = settled(start_of(tmp_path / "b", trainer=OWN_LOOP), measure)

    assert asked.settings["dataloader_workers"].effective == 1
    assert (asked.reading, own.reading, measure.runs) == ({}, {}, [])


def test_a_resume_measures_nothing(tmp_path):
    """The saved plan stands; with small shared memory a machine gets what it has room for, from the same
    measurement.
    """
    start, measure = start_of(tmp_path), Measuring()
    plan, job, ledger, store = settled(start, measure)
    drive_opened(prepare(job, plan, ledger), start, plan, store, stop_at=4)
    again, *_ = settled(start_of(tmp_path, attempt=2), measure)
    smaller, *_ = settled(start_of(tmp_path, attempt=3), measure, shared_memory_bytes=0)

    assert again == plan
    assert len(measure.runs) == 1
    assert smaller.reading == plan.reading
    assert smaller.settings["dataloader_workers"].effective == 0


def test_other_ranks_take_what_the_first_one_measured(tmp_path):
    """One measurement, one plan on the disk."""
    start, measure = start_of(tmp_path), Measuring()
    plan, *_ = settled(start, measure)
    other, *_ = settled(start, Measuring(Reading(rows=1)), rank=1)

    assert other.settings["dataloader_workers"] == plan.settings["dataloader_workers"]
    assert written(start) == plan


def test_the_pilot_says_how_long_an_update_computes(tmp_path):
    """As many as keep up with it, and no more."""
    start = start_of(tmp_path)
    job, _ = opened(start)
    measured = {
        "source": "pilot.json", "device": {"kind": "cpu", "name": job.facts.name, "memory_bytes": 0},
        "settings": {}, "replicas": 1, "measured_bytes": None, "predicted_bytes": 0, "rounding_bytes": 0,
        "update_seconds": 1.2, "updates": 3, "data_seconds": 0.2,
    }  # fmt: skip
    settings = {name: value for name, value in job.asked.model_dump(mode="json").items() if value != "auto"}
    start = dataclasses.replace(start, measured={**measured, "settings": settings})
    plan, *_ = settled(start, Measuring(), cores=8)

    assert plan.settings["dataloader_workers"].effective == 1
    assert "an update computes 1 s (measured by the pilot on" in plan.settings["dataloader_workers"].why
