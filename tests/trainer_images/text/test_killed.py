"""A job on a real language model, killed twice, ends as one that nobody touched."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import held_trainers
from kill_matrix import assert_same_job, end_job, kill_job, newest_step, start_job, wait_for_checkpoint

SETTINGS = {
    "updates": 6, "global_batch": 4, "microbatch": 2, "keep_layers": 2, "max_length": 64, "checkpoint_every": 1,
    "evaluate_every": 3, "validation_share": 0.1, "test_share": 0.1, "lora_dropout": 0.1,
    "dataloader_workers": 1, "ema_decay": 0.9, "held_out_predictions": 1,
    "control_prompts": 1, "max_new_tokens": 2,
}  # fmt: skip


def test_killed_twice(tmp_path: Path, dictionary: list[Any]):
    """B1, C1: two layers of SmolLM2, a loader worker and the supervisor killed by SIGKILL after checkpoints:
    metrics, evaluations, ids, adapter bytes and every tensor of the last checkpoint are the same. The rank ends
    with either; ``test_kills.py`` kills it alone.
    """  # fmt: skip
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text("\n".join(map(json.dumps, dictionary[:20])))
    job = {
        "trainer": held_trainers.TEXT, "model": "smollm2-135m-instruct", "job_id": "killed",
        "inputs": {"dataset": str(dataset)}, "hyperparameters": SETTINGS,
    }  # fmt: skip
    code, output = end_job(start_job(tmp_path / "whole", job, pinned=False))
    assert code == 0, output
    moment = random.Random(3)
    for victim in ("worker", "supervisor"):
        before = newest_step(tmp_path / "cut" / "job")
        process = start_job(tmp_path / "cut", job, pinned=False, hold=3)  # in the second update
        wait_for_checkpoint(process, tmp_path / "cut" / "job", beyond=before)
        time.sleep(moment.random() * 0.2)
        kill_job(process, victim)
        end_job(process)
    code, output = end_job(start_job(tmp_path / "cut", job, pinned=False))

    assert code == 0, output
    assert_same_job(tmp_path / "cut" / "job", tmp_path / "whole" / "job")
