"""The twin of ``test_run.py`` and ``test_pilot.py`` on a card: whole jobs in processes of their own."""

from __future__ import annotations

import io
import json

import pytest
import torch

from app_trainer_sdk import pilot
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
KIND = "cuda"
#: Wide enough for 8-bit state, and for more than one chunk of anything.
SETTINGS = {"updates": 12, "learning_rate": 0.01, "noise": 0.01, "width": 600}


def lines_of(toy, name):
    return [json.loads(line) for line in (toy.directory / name).read_text().splitlines()]


@pytest.mark.parametrize(
    "settings",
    [{}, {"optim_8bit": True}, {"torch_compile": True}, {"mixed_precision": "fp16"}],
    ids=["", "8-bit", "compiled", "fp16"],
)
def test_a_job_on_a_card(start_toy, settings):
    """It is planned for the card, trains there, gives back what it held, and its artifact is asked again."""
    toy = start_toy(**SETTINGS, **settings)

    assert toy.end(300.0) == 0, toy.told()
    plan = json.loads((toy.directory / "plan.json").read_text())
    assert plan["device"].startswith(f"{KIND}: ")
    for name, value in settings.items():
        assert plan["settings"][name]["effective"] == value
    assert toy.result()["counters"]["updates"] == 12
    assert toy.result()["replay"]["same"] is True
    rows = {row["phase"]: row for row in lines_of(toy, "phases.jsonl")}
    assert rows["train"]["peak"] > rows["train"]["after"]["allocated"]
    assert {row["verdict"] for row in rows.values()} <= {"released", "held on purpose"}
    if KIND == "cuda":
        assert plan["fit"]["card"]["memory_bytes"] > 0, plan["fit"]
        assert plan["precision"] in ("bf16", "fp16")
        assert rows["train"]["before"]["driver"] > 0


def test_a_job_on_a_card_is_taken_up(start_toy, run_toy):
    """Killed in the middle, it goes on from its checkpoint there."""
    first = start_toy(**{**SETTINGS, "updates": 40, "checkpoint_every": 4, "sleep_seconds": 0.1})
    first.wait_for("job.checkpoint")
    first.process.kill()
    first.end()
    second = run_toy(again=first)

    assert second.code == 0, second.told()
    assert [line["step"] for line in lines_of(second, "metrics.jsonl")] == [*range(1, 41)]


def test_a_pilot_on_a_card(tmp_path, monkeypatch):
    """It measures the card's own peak of the longest update, and compiles where nobody decided that."""
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    job = tmp_path / "job.json"
    job.write_text(json.dumps({
        "trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp", "hyperparameters": SETTINGS,
    }))  # fmt: skip
    told = io.StringIO()
    code = pilot.pilot_job(job, tmp_path / "out", console=Console(told))
    document = json.loads((tmp_path / "out/pilot/pilot.json").read_text())

    assert code == ExitCode.SUCCEEDED, told.getvalue()
    assert document["restore"]["different"] == []
    assert document["restore"]["evaluation_equal"] is True
    longest = [row["peak"] for row in document["phases"] if row["phase"].startswith("longest ")]
    if KIND == "cuda":
        assert document["predicted"]["measured_bytes"] == max(longest)
        assert document["compile"] is not None
