"""Runs on cards that are not here: what is assumed of them, and what the job says itself."""

from __future__ import annotations

import torch

from app_trainer_sdk.choice import Candidate
from app_trainer_sdk.gpus import find_card
from app_trainer_sdk.job import Job
from app_trainer_sdk.testing.toys import ToyTrainer
from app_trainer_sdk.training.assumed import CORES, UPDATES, AssumedRuns


def runs(replicas=1, **hyperparameters):
    document = {
        "trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp",
        "inputs": {"dataset": {"url": "/nowhere"}}, "hyperparameters": hyperparameters,
    }  # fmt: skip
    return AssumedRuns(Job.model_validate(document), ToyTrainer(), replicas=replicas)


def test_a_length_is_assumed_where_the_job_names_none():
    """Planning reads no data, and a run's length moves no memory."""
    card = find_card("L4")
    open_ended, asked = runs(), runs(updates=7)

    assert open_ended.plan(card, open_ended.asked).updates == UPDATES
    assert asked.plan(card, asked.asked).updates == 7


def test_the_card_decides_precision_and_each_rank_has_its_processors():
    shared = runs(replicas=2)
    plans = {name: shared.plan(find_card(name), shared.asked) for name in ("T4", "H200")}

    assert [each.precision for each in plans.values()] == ["fp16", "bf16"]
    assert plans["T4"].threads == CORES
    assert plans["T4"].replicas == 2


def test_a_run_has_the_knobs_of_a_candidate():
    """And what the plan decided where none is given; it is on no device."""
    assumed = runs(global_batch=8)
    plan = assumed.plan(find_card("L4"), assumed.asked)
    run = assumed.run(plan, Candidate(2, 4, True, False, "no"))

    assert (run.settings.microbatch, run.settings.gradient_accumulation_steps) == (2, 4)
    assert run.settings.gradient_checkpointing
    assert (run.dtype, assumed.run(plan).dtype) == (torch.float32, torch.bfloat16)
    assert run.device.type == "cpu"
