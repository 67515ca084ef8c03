"""One page from a pilot's document: what is said for each thing it may hold."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from app_trainer_sdk.pilot_page import pilot_page

MIB = 1 << 20
ROW = {
    "rank": 0, "phase": "load", "seconds": 2.04, "peak": 300 * MIB, "verdict": "released", "reused": False,
    "after": {"allocated": 200 * MIB, "reserved": 220 * MIB, "driver": 0, "resident": 250 * MIB},
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "job_id": "j_1", "go": True, "reasons": [], "advice": [],
    "run": {
        "trainer": "text", "trainer_version": "1", "model": "small", "method": "lora",
        "device": "cpu: a processor",
        "batch": "2 × 4 × 1 = 8 examples per update", "updates": 1000,
    },
    "updates": {
        "seconds": 0.5, "measured": 3, "longest_seconds": 0.75, "examples_per_second": 16.0,
        "data_seconds": 0.01,
    },
    "estimate": {"load": 2.0, "updates": 5000.0, "total": 5002.0},
    "phases": [ROW], "predicted": None, "compile": None, "mechanics": None, "data": {}, "shown": [],
    "checkpoint": {"bytes": 3 * MIB, "stall_seconds": 0.01, "write_seconds": 0.2},
    "restore": {
        "different": [], "tensors": 12, "tolerance": 1e-5, "evaluation_here": {"loss": 1.5},
        "evaluation_there": {"loss": None},
    },
}  # fmt: skip


def page_with(**changes: Any) -> str:
    return pilot_page({**copy.deepcopy(DOCUMENT), **changes})


def test_a_go():
    """The verdict first, then what the run would take, part by part."""
    page = page_with()

    assert page.startswith("# j_1: go\n\ntext 1, small, lora, on cpu: a processor\nwith 2 × 4 × 1 = 8 examples")
    assert "| updates | 5,000.0 |" in page
    assert "about 1 h 23 min." in page
    assert "| 0 | load | 2.0 | 200 | 220 | 300 | 0 | 250 | released |" in page
    assert "12 tensors came back, bit-equal" in page
    assert "loss 1.5 before, loss not finite after" in page
    assert "**" not in page


def test_a_no_go_says_every_reason_and_what_to_turn():
    """Before anything else."""
    head = page_with(go=False, reasons=["rows cannot be learnt"], advice=["dataloader_workers up"]).split("##")[
        0
    ]

    assert head.startswith("# j_1: no-go")
    assert "* **rows cannot be learnt**\n* turn: dataloader_workers up" in head


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"predicted": {"failed": "no shapes"}}, "No prediction: no shapes"),
        (
            {
                "predicted": {
                    "rehearsed_bytes": 100 * MIB, "measured_bytes": 101 * MIB, "ratio": 1.01,
                    "grade": "predicted",
                }
            },
            "Predicted peak of an update: 100 MiB (predicted); measured 101 MiB, 1.01 times that.",
        ),
        ({"compile": {"failed": "no compiler"}}, "Compiling failed: no compiler"),
        (
            {"compile": {"compile_seconds": 60.0, "eager_seconds": 0.1, "compiled_seconds": 0.08}},
            "Compiling: ",
        ),
        ({"data": {"rows": 10}}, "* rows: 10"),
        ({"shown": [{"prompt": "ä"}]}, '* `{"prompt": "ä"}`'),
        ({"phases": [{**ROW, "verdict": "kept a|b", "reused": True}]}, "| kept a\\|b, reused |"),
        ({"phases": [{**ROW, "after": None}]}, "| 0 | load | 2.0 | 0 | 0 | 300 | 0 | 0 | released |"),
        ({"updates": {**DOCUMENT["updates"], "communication_seconds": 0.02}}, "ranks takes 0.02 s by itself"),
        ({"restore": {**DOCUMENT["restore"], "different": ["a", "b"]}}, "came back, 2 of them differ"),
        (
            {"mechanics": {"rows": 8, "updates": 5, "first": 2.0, "last": None, "factor": 0.9}},
            "8 rows trained on 5 times: loss 2, then loss not finite",
        ),
    ],
)  # fmt: skip
def test_what_a_document_may_hold_is_said(changes: dict[str, Any], said: str):
    """What failed is told in its place; nothing breaks the table."""
    assert said in page_with(**changes)
    assert said not in page_with()
