"""``report.md`` tells a person how a job went, from the files of its directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.report import read_lines, write_report

SUCCEEDED = {"job_id": "j", "attempt": 1, "status": "succeeded", "exit_code": 0, "name": "succeeded"}


def metric(step: int, loss: float | None, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "loss": loss,
        "applied": True,
        "seconds": 30.0,
        "data_seconds": 3.0,
        "examples": 800,
        "units": 4000.0,
        **more,
    }


def put(path: Path, *rows: Any) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_lines_cut_off_by_a_kill_are_passed_over(tmp_path: Path):
    """At the end, or in the middle where another start wrote on."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a": {"a": 2}\n3\n{"a": 3}\n{"a"')

    assert read_lines(path) == [{"a": 1}, {"a": 3}]
    assert read_lines(tmp_path / "none") == []


def test_a_job_that_did_nothing_has_a_head_alone(tmp_path: Path):
    """No empty sections."""
    layout = JobDirectory(tmp_path)
    failure = {"message": "no file", "phase": "", "origin": "user", "retry": "no"}
    write_report(
        layout, {**SUCCEEDED, "status": "failed", "exit_code": 66, "name": "input_missing", "failure": failure}
    )

    assert layout.report.read_text() == (
        "# j: failed\n\nExit code 66 (input_missing), attempt 1.\n\n**no file**\n\n"
        "Phase unknown; origin user; another try: no.\n"
    )


def test_an_early_end_and_the_exported_checkpoint_are_told(tmp_path: Path):
    """A run shorter than planned says why, and whose weights the artifact has."""
    layout = JobDirectory(tmp_path)
    put(layout.metrics, metric(1, 4.0))
    training = {"ended_early": "2 evaluations without a better loss than 3.0 after update 4"}
    training |= {"exported_step": 4, "exported": "the best one"}
    write_report(layout, {**SUCCEEDED, "training": training})
    told = layout.report.read_text()

    assert "* ended early: 2 evaluations without a better loss than 3.0 after update 4\n" in told
    assert "* exported: the checkpoint of update 4, the best one\n" in told


def test_waiting_is_told_by_part_and_time_by_activity(tmp_path: Path):
    """What took nothing is left out."""
    layout = JobDirectory(tmp_path)
    parts = {"fetch": 0.0, "decode": 2.0, "collate": 1.0, "handover": 0.0, "transfer": 0.5}
    put(layout.metrics, metric(1, 4.0, data_parts=parts))
    split = {"wall_seconds": 40.0, "seconds": {"start": 10.0, "compile": 0.0, "compute": 30.0}}
    write_report(layout, {**SUCCEEDED, "time_split": split})
    told = layout.report.read_text()

    assert (
        "waiting for data 11.7 %\n* of that wait: decode 2.0 s, collate 1.0 s, transfer 0.5 s; most is decode"
        in told
    )
    assert "This start took 40 s:" in told
    assert "| start | 10.0 | 25.0 % |\n| compute | 30.0 | 75.0 % |" in told
    assert "compile" not in told


def test_a_whole_report(tmp_path: Path):
    """Training, what was not applied, evaluation, memory, outputs, and before beside after."""
    layout = JobDirectory(tmp_path)
    put(
        layout.metrics,
        metric(1, 4.0),
        metric(1, None, applied=False, nonfinite=["loss"], why="non-finite"),
        metric(2, 3.5, out_of_memory=[{"microbatch": 8, "next": 4, "error": "OutOfMemoryError: CUDA"}]),
        metric(2, 1.0, applied=False),
    )
    tried = {"split": "validation", "microbatch": 2, "next": 1, "error": "OutOfMemoryError: HIP"}
    put(
        layout.evaluations,
        {"step": 0, "split": "validation", "seconds": 1, "loss": 2.0},
        {"step": 2, "split": "validation", "seconds": 1, "loss": 1.5, "error": None, "out_of_memory": [tried]},
    )
    side = {"resident": 300 << 20}
    put(
        layout.phases,
        {
            "attempt": 1,
            "phase": "train",
            "seconds": 2.0,
            "peak": 400 << 20,
            "before": side,
            "after": side,
            "verdict": "released",
            "reused": True,
        },
    )
    state = {"dtype": "uint8", "tensors": 2, "parameters": 6400, "bytes": 13400}
    optimizer = {"class": "AdamW8bit", "fused": False, "groups": [{"lr_scale": 1.0, "state": [state]}]}
    other = layout.attempt(1) / "rank-1" / layout.phases.name
    other.parent.mkdir(parents=True)
    row = {"attempt": 1, "rank": 1, "within": "train", "phase": "encode", "seconds": 1.0, "peak": 0}
    put(other, {**row, "before": side, "after": side, "verdict": "kept 1 KiB: a | b", "reused": False})
    output = {"name": "weights", "path": "artifacts/weights", "bytes": 1596, "sha256": "ab"}
    comparison = [{"prompt": "LOVE\n n.", "before": "a", "after": {"b": 1}}]
    write_report(
        layout,
        {
            **SUCCEEDED,
            "optimizer": optimizer,
            "compiled_graphs": 3,
            "outputs": [output],
            "replay": {"asked": 2, "same": True},
            "artifact": {"comparison": comparison},
        },
    )
    text = layout.report.read_text()

    for line in (
        "* updates: 2, loss 4.0000 → 3.5000",
        "* examples: 1,600, units: 8,000",
        "* time in updates: 2 min 0 s, waiting for data 10.0 %",
        "* not applied after update 1: non-finite loss",
        "* out of memory at update 2: microbatch 8 → 4 at the same global batch; OutOfMemoryError: CUDA",
        "| update | split | error | loss |",
        "* out of memory evaluating validation after update 2: 2 → 1 rows at once, the same sums; "
        "OutOfMemoryError: HIP",
        "* graphs compiled in this attempt: 3",
        "AdamW8bit, not fused.",
        "| 0 | uint8 | 2 | 6,400 | 13,400 |",
        "| update | split | error | loss |",
        "| 2 | validation | not finite | 1.5000 |",
        "| 1 | 0 | train | 2.0 | 400 | 300 → 300 | released, reused |",
        "| 1 | 1 | train/encode | 1.0 | 0 | 300 → 300 | kept 1 KiB: a \\| b |",
        "* `artifacts/weights`: 1,596 bytes, sha256 ab",
        "### LOVE n.",
        '* after: {"b": 1}',
        "* loaded again in a new process: 2 answers, all the same as before export",
    ):
        assert line in text.splitlines(), text


def test_a_broken_data_order_is_told(tmp_path: Path):
    """A stream that could not go on where it was is in the report, with the updates."""
    layout = JobDirectory(tmp_path)
    put(layout.metrics, metric(1, 4.0))
    write_report(layout, {**SUCCEEDED, "stream": {"resume": "not exact", "not_exact_after": [7]}})

    assert (
        "* data order not exact after update 7: the stream could not go on where" in layout.report.read_text()
    )
