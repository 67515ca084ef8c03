"""A job killed at any moment, however often, ends as one that nobody touched.

``SOAK_KILLS=300`` (``make soak``) kills that many lives instead of thirty.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import held_trainers
import pytest
from kill_matrix import (
    Kills,
    assert_same_job,
    end_job,
    finish,
    kill_job,
    live,
    newest_step,
    start_job,
    wait_for_checkpoint,
)

from app_trainer_sdk.files import read_json, sha256_tree
from app_trainer_sdk.start import Start

KILLS = int(os.environ.get("SOAK_KILLS", "30"))
KILLS_A_JOB = 30
#: Everything that makes resuming hard, at once.
TOY = {
    "trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp", "job_id": "killed",
    "hyperparameters": {
        "updates": 90, "rows": 83, "validation_rows": 7, "width": 4096, "dropout": 0.2, "noise": 0.3,
        "unit_free_share": 0.1, "microbatch": 2, "gradient_accumulation_steps": 3, "warmup_updates": 9,
        "evaluate_every": 7, "checkpoint_every": 5, "dataloader_workers": 1, "ema_decay": 0.9,
        "optim_8bit": True, "sleep_seconds": 0.002,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The directory of a toy job that nobody touched."""
    directory = tmp_path_factory.mktemp("toy") / "whole"
    code, output = end_job(start_job(directory, TOY))
    assert code == 0, output
    return directory / "job"


def test_the_job_has_everything(whole):
    """The jobs that are killed have 8-bit state, an average, unequal microbatches and several passes."""
    result = read_json(whole / "result.json")
    checkpoint = whole / "checkpoints" / "step-00000090"
    files = {each.name for each in checkpoint.iterdir()}
    plan = read_json(whole / "plan.json")

    assert {"ema.safetensors", "optimizer.safetensors", "random.safetensors"} <= files
    assert "AdamW8bit" in (checkpoint / "state.json").read_text()
    assert result["counters"]["updates"] == 90 > 3 * plan["updates_per_epoch"]
    assert result["counters"]["empty_microbatches"] > 0


def test_killed_at_random_moments(tmp_path, whole):
    """B1, C1: the rank, or a loader worker under it, killed by SIGKILL thirty times at random moments, some of
    them in the middle of a save: metrics, evaluations, ids, counters, artifact bytes and every tensor of the
    last checkpoint are those of a run that nobody touched.
    """  # fmt: skip
    moment, kills, number = random.Random(20), Kills(), 0
    start = Start.load(whole / "attempts" / "1" / "start.json")
    while kills.total < KILLS:
        number += 1
        directory, before = tmp_path / str(number), kills.total
        while not (ended := live(start, directory, moment, kills, longest=1.5)):
            if kills.total == KILLS or kills.total - before == KILLS_A_JOB:
                break
        if not ended:
            finish(start, directory)
        assert_same_job(directory, whole)
    sys.stdout.write(f"\n{kills.total} kills over {number} jobs: {kills}\n")

    assert kills.in_saves >= KILLS // 10
    assert set(kills.victims) == {"rank", "worker"}


def test_the_command_killed(tmp_path, whole):
    """B1, C1, L4: the command ``run`` with its rank, its supervisor and a loader worker killed in turn."""
    moment, job, held = random.Random(7), tmp_path / "cut" / "job", {**TOY, "trainer": held_trainers.TOY}
    codes = {"rank": 70, "worker": 70, "supervisor": -9}
    for victim in ("rank", "supervisor", "worker"):
        before = newest_step(job)
        process = start_job(tmp_path / "cut", held, hold=8 * 3)  # updates after the one it goes on from
        wait_for_checkpoint(process, job, beyond=before)
        time.sleep(moment.random() * 0.1)
        kill_job(process, victim)
        code, output = end_job(process)

        assert code == codes[victim], output
    code, output = end_job(start_job(tmp_path / "cut", held))

    assert code == 0, output
    assert_same_job(job, whole)
    assert read_json(job / "result.json")["counters"] == read_json(whole / "result.json")["counters"]


def test_a_finished_job_is_left_alone(whole):
    """B2: a job that is complete says so, makes no update and leaves its artifact's bytes."""
    digest = sha256_tree(whole / "artifacts")
    before = (whole / "metrics.jsonl").read_bytes()
    process = subprocess.run(
        [sys.executable, "-m", "app_trainer_sdk.run", "--job", whole.parent / "asked.json", "--job-dir", whole],
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert process.returncode == 0
    assert "already complete" in process.stdout + process.stderr
    assert sha256_tree(whole / "artifacts") == digest
    assert (whole / "metrics.jsonl").read_bytes() == before
