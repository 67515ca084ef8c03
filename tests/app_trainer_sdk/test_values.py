"""The plain values between a trainer and the SDK."""

from __future__ import annotations

import torch

from app_trainer_sdk.streams import IterableStream
from app_trainer_sdk.values import Batch, Input, Phase, Snapshot, Stream


def test_a_section_of_a_snapshot_has_its_own_names():
    """The part before the first ``/`` names it; one whose name begins alike is another one."""
    tensors = {name: torch.ones(1) for name in ("model/a.b", "model/c/d", "model2/a.b", "optimizer/a.b")}

    assert list(Snapshot(tensors).section("model")) == ["a.b", "c/d"]
    assert Snapshot(tensors).section("mod") == {}


def test_what_holds_tensors_is_equal_to_itself_alone():
    """Whether two tensors are equal is not one truth; facts are compared as ever."""
    batch = Batch({"x": torch.ones(2)}, units=2)

    assert batch == batch
    assert batch != Batch(batch.tensors, units=2)
    assert Input("Rows.") == Input("Rows.")


def test_a_stream_is_known_by_what_it_can_do():
    """No base class: rows are asked for by number, records are read."""
    assert isinstance(IterableStream(list), Stream)
    assert not isinstance([1, 2], Stream)


def test_a_phase_depends_on_everything_unless_it_says_less():
    """The safe default: a result is never shared that could be another."""
    assert set(Phase("encode", lambda run, folder: {}).uses) == {
        "weights",
        "inputs",
        "phases",
        "precision",
        "seed",
    }
