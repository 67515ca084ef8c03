"""What a pilot's measurements mean: the whole run's time, go or no-go, and which knob to turn."""

from __future__ import annotations

import copy

import pytest

from app_trainer_sdk.pilot_verdict import estimate, verdict

GIB = 1 << 30


def measured(**changes):
    """A pilot that found nothing to object to."""
    row = {"rank": 0, "seconds": 2.0, "peak": 10 * GIB, "verdict": "released", "reused": False}
    document = {
        "run": {"updates": 100, "evaluations": 5, "checkpoints": 10}, "preparation": ["weights"],
        "device": {"memory_bytes": 16 * GIB},
        "phases": [{**row, "phase": name} for name in ("weights", "load", "updates", "export", "replay")],
        "updates": {"seconds": 0.5, "data_seconds": 0.0, "ids_right": True},
        "evaluation": {"seconds": 1.0}, "checkpoint": {"stall_seconds": 0.1},
        "restore": {
            "different": [], "evaluation_equal": True, "evaluation_here": {"loss": 1.0},
            "evaluation_there": {"loss": 1.0},
        },
        "mechanics": {"rows": 4, "updates": 5, "first": 2.0, "last": 1.0, "factor": 0.9, "learned": True},
    }  # fmt: skip
    document |= copy.deepcopy(changes)
    return {**document, "estimate": estimate(document)}


def test_the_parts_of_a_run_add_up():
    """Once: preparation, load, export, replay. Many times: updates, evaluations, waits for checkpoints."""
    assert measured()["estimate"] == {
        "weights": 2.0, "load": 2.0, "export": 2.0, "replay": 2.0, "updates": 50.0, "evaluations": 5.0,
        "checkpoints": 1.0, "total": 64.0,
    }  # fmt: skip


def test_go():
    """Nothing to object to."""
    told = verdict(measured())

    assert (told["go"], told["reasons"]) == (True, [])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"restore": {**measured()["restore"], "different": ["model/w"]}}, "the state differs: model/w"),
        (
            {
                "restore": {
                    **measured()["restore"],
                    "evaluation_equal": False,
                    "evaluation_there": {"loss": 2.0},
                }
            },
            "evaluates to {'loss': 2.0}, not to {'loss': 1.0}",
        ),
        ({"mechanics": {**measured()["mechanics"], "learned": False, "last": None}}, "loss 2 to not finite"),
        ({"updates": {**measured()["updates"], "ids_right": False}}, "not those of the order"),
        ({"device": {"memory_bytes": 10 * GIB}}, "the peak is 10.0 GiB of the card's 10.0 GiB"),
        (
            {"phases": [{**measured()["phases"][0], "verdict": "kept 3 MiB: cache['encoder']"}]},
            "phase weights (rank 0): kept 3 MiB: cache['encoder']",
        ),
    ],
    ids=["state", "evaluation", "mechanics", "ids", "memory", "leak"],
)
def test_no_go(changes, reason):
    """Each fault by itself is a reason, told with what was found."""
    told = verdict(measured(**changes))

    assert not told["go"]
    assert [each for each in told["reasons"] if reason in each]


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"updates": {**measured()["updates"], "data_seconds": 0.2}}, "dataloader_workers up: 40%"),
        ({"checkpoint": {"stall_seconds": 5.0}}, "checkpoint_every: checkpoints take 44% of the run"),
        ({"evaluation": {"seconds": 20.0}}, "evaluate_every: evaluations take 63% of the run"),
        ({"device": {"memory_bytes": 100 * GIB}}, "microbatch: the peak is 10% of the card"),
        (
            {"compile": {"compile_seconds": 10.0, "eager_seconds": 0.5, "compiled_seconds": 0.3}},
            "and compiling 10 s: it pays after 50 updates of the 100 to make; this pilot measured it",
        ),
    ],
    ids=["data", "checkpoints", "evaluations", "microbatch", "compile"],
)
def test_advice(changes, advice):
    """A share of time or memory that stands out names its knob."""
    assert any(advice in each for each in verdict(measured(**changes))["advice"])


def test_the_cpu_has_no_card_to_fill():
    """Without a card there is no share of one."""
    told = verdict(measured(device={"memory_bytes": 0}))

    assert told["go"]
    assert not [each for each in told["advice"] if "microbatch" in each]


def test_what_never_pays_or_cannot_be_compiled_is_no_advice():
    """Measured times decide; a failure is told on the page."""
    slow = {"compile_seconds": 60.0, "eager_seconds": 0.5, "compiled_seconds": 0.4}
    for told in (slow, {"failed": "no compiler"}, None):
        assert not [each for each in verdict(measured(compile=told))["advice"] if "torch_compile" in each]
