"""What may be asked of rows and of a stream, and what is decided when nobody asks."""

from __future__ import annotations

from typing import Any

import pytest

from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.plan import DeviceFacts, Plan, plan_lines
from app_trainer_sdk.planning.resolve import resolve_plan

CPU = DeviceFacts("cpu", "a processor", bf16=False, cores=4)


def plan(stream: str = "exact", *, replicas: int = 1, **asked: Any) -> Plan:
    return resolve_plan(
        Hyperparameters.read(asked), trainer="t", trainer_version="1", model="m", method="full",
        data=DataFacts(rows=None, stream=stream), device=CPU, replicas=replicas, asked=asked,
    )  # fmt: skip


def test_a_stream_is_read_in_its_order_by_the_training_process():
    """Nobody asked: no sampling, no workers, each with its reason; the examples are exact."""
    made = plan(updates=7, global_batch=4)

    assert (made.examples_seen, made.rows, made.settings["epochs"].effective) == (28, None, None)
    assert made.settings["sampling"].effective == "sequential"
    assert made.settings["sampling"].why == "a stream has an order of its own"
    assert made.settings["dataloader_workers"].why == "a stream is read in order, by the training process"


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        ("exact", "a stream, resumed exact: the stream says where it was"),
        ("by replay", "a stream, resumed by replay: the stream is read again from the beginning of the pass"),
        ("not exact", "a stream, resumed not exact: the stream cannot go on where it was"),
    ],
)
def test_the_plan_says_how_a_stream_resumes(stream: str, told: str):
    """Before the first update everybody can read whether a resume will be exact; the plan keeps it."""
    made = plan(stream, updates=7)

    assert any(told in line for line in plan_lines(made))
    assert Plan.from_document(made.document()) == made
    assert made.stream == stream


def test_what_a_stream_cannot_do_is_refused_at_once():
    """Sampling, batching and workers are told together."""
    with pytest.raises(BadJob) as caught:
        plan(updates=7, sampling="shuffled", batching="by_length", dataloader_workers=2)

    assert [each.pointer for each in caught.value.problems] == [
        "/hyperparameters/sampling", "/hyperparameters/batching", "/hyperparameters/dataloader_workers",
    ]  # fmt: skip
    assert "the training data is a stream" in str(caught.value)


def test_a_stream_needs_updates():
    """Nobody knows how long a pass is."""
    with pytest.raises(BadJob, match="/hyperparameters/updates"):
        plan(epochs=3)


def test_ranks_read_the_same_stream_or_none():
    """Each rank reads all records and takes its share: a stream that differs each time has no shares."""
    assert plan("by replay", replicas=2, updates=7).replicas == 2
    with pytest.raises(BadJob, match="--ranks: found 2; expected 1"):
        plan("not exact", replicas=2, updates=7)
