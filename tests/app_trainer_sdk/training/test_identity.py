"""Two starts of a job are compared field by field."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from app_trainer_sdk.changes import FIELDS, NEVER, RANDOM, SETTINGS, Difference
from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.plan import DeviceFacts
from app_trainer_sdk.planning.resolve import resolve_plan
from app_trainer_sdk.training.identity import (
    OPERATIONAL,
    compare_identity,
    describe_identity,
)

CPU = DeviceFacts("cpu", "a processor", bf16=False, cores=4, kernels="AVX2")


def identity(device: DeviceFacts = CPU, fingerprint: str = "f", **asked: Any) -> dict[str, Any]:
    plan = resolve_plan(
        Hyperparameters.read({"updates": 100, **asked}),
        trainer="t",
        trainer_version="1",
        model="m",
        method="full",
        data=DataFacts(100),
        device=device,
        asked=asked,
    )
    return describe_identity(plan, fingerprint=fingerprint, weights={"base": "r1"}, device=device)


def test_equal_starts_have_no_difference():
    """Nothing in the identity depends on when or where it is made."""
    assert compare_identity(identity(), identity()) == []


@pytest.mark.parametrize("name", sorted(OPERATIONAL - {"epochs", "memory_release"}))
def test_what_changes_no_number_may_change(name: str):
    """Cadence, retention, workers and limits are free on resume."""
    words = {"best_metric": "accuracy", "best_is": "highest", "export_from": "best"}

    assert compare_identity(identity(), identity(**{name: words.get(name, 3)})) == []
    assert compare_identity(identity(), identity(memory_release="raise")) == []


def test_every_difference_is_told_at_once():
    """Data, threads, seed and batch: the field, the value of now and the one in the checkpoint."""
    other = identity(dataclasses.replace(CPU, cores=2), fingerprint="g", seed=7, microbatch=4)
    told = {each.field: each for each in compare_identity(identity(), other)}

    assert {
        "dataset",
        "threads",
        "settings/seed",
        "settings/microbatch",
        "settings/global_batch",
    } == told.keys()
    assert told["settings/seed"] == Difference("settings/seed", 42, 7)


def test_every_field_may_change_or_says_why_it_never_may():
    """No field of the identity is forgotten by ``--allow-change``."""
    fields = {name for name in identity() if not name.startswith(SETTINGS)}

    assert fields == {*FIELDS, *NEVER} - {RANDOM, *(name for name in NEVER if name.startswith(SETTINGS))}


def test_a_field_only_one_side_knows_is_a_difference():
    """A checkpoint of another version of this library is not continued by guesswork."""
    assert compare_identity({"a": 1, "b": 2}, {"a": 1, "c": 3}) == [
        Difference("b", 2, None), Difference("c", None, 3),
    ]  # fmt: skip
