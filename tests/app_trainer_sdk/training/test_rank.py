"""The process that trains: from a start to an outcome, artifacts whole and asked again in a new process."""

from __future__ import annotations

import errno
import json

import pytest
from safetensors.torch import load_file
from torch_helpers import CountingToken, RecordingChannel, same_tensors

from app_trainer_sdk.checkpoints import inspect_checkpoint
from app_trainer_sdk.errors import Diverged, ExitCode, StopRequested
from app_trainer_sdk.files import read_json, sha256_tree
from app_trainer_sdk.outcome import outcome_document
from app_trainer_sdk.start import Start
from app_trainer_sdk.training.compiled import count_graphs
from app_trainer_sdk.training.rank import Rank, _hand_in
from app_trainer_sdk.training.replay import main as replay
from app_trainer_sdk.training.team import Team

SETTINGS = {"rows": 12, "validation_rows": 3, "updates": 4, "global_batch": 4, "checkpoint_every": 1}


def rank_of(directory, attempt=1, *, stop_at=0, **settings):
    job = {
        "schema": "app.trainer.job/v1", "job_id": "j", "trainer": "app_trainer_sdk.testing.toys:ToyTrainer",
        "model": "toy-mlp", "hyperparameters": {**SETTINGS, **settings},
    }  # fmt: skip
    start = Start(directory=str(directory), attempt=attempt, cache=str(directory / "cache"), job=job)
    start.save()
    token = CountingToken(stop_at)
    token.check = token.place  # a rank asks its token everywhere
    return Rank(start, RecordingChannel(token), token)


def rows(rank):
    return [json.loads(line) for line in rank.layout.phases.read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A rank that did its job, and the facts of its outcome."""
    rank = rank_of(tmp_path_factory.mktemp("finished"))
    return rank, rank.work()


def test_a_job_from_start_to_outcome(finished):
    """A rank leaves counters, outputs with digests, a replay in a new process that agrees, a row a phase."""
    rank, facts = finished
    (output,) = facts["outputs"]
    digest, size = sha256_tree(rank.layout.artifacts / "weights")

    assert (facts["step"], facts["counters"]["updates"], facts["counters"]["examples"]) == (4, 4, 16)
    assert (facts["optimizer"]["class"], facts["optimizer"]["fused"]) == ("AdamW", True)
    assert facts["compiled_graphs"] == count_graphs()
    assert [row["dtype"] for row in facts["optimizer"]["groups"][0]["state"]] == ["float32"]
    assert (output["name"], output["sha256"], output["bytes"]) == ("weights", digest, size)
    assert facts["replay"] == {"asked": 2, "same": True}
    assert [row["phase"] for row in rows(rank)] == ["examine", "train", "export", "replay"]
    assert {row["attempt"] for row in rows(rank)} == {1}
    assert [facts["name"] for kind, facts in rank.channel.said if kind == "phase"] == [
        "examine", "prepare", "train", "export", "replay",
    ]  # fmt: skip
    assert not [*rank.layout.root.glob(".artifacts*")]


def test_the_artifact_is_the_average(tmp_path):
    """With ``ema_decay`` what is exported is what was evaluated."""
    rank = rank_of(tmp_path, ema_decay=0.9)
    facts = rank.work()
    (checkpoint,) = [each for each in (tmp_path / "checkpoints").iterdir() if each.name == "step-00000004"]
    exported = load_file(rank.layout.artifacts / "weights" / "model.safetensors")

    assert facts["replay"]["same"]
    assert same_tensors(exported, load_file(checkpoint / "ema.safetensors"))
    assert not same_tensors(exported, load_file(checkpoint / "model.safetensors"))


def test_stopped_and_gone_on(tmp_path):
    """B2: a stop leaves a whole checkpoint; the next rank says where it goes on and does not train twice."""
    first = rank_of(tmp_path, stop_at=9)
    with pytest.raises(StopRequested):
        first.work()
    checkpoints = [inspect_checkpoint(each) for each in (tmp_path / "checkpoints").iterdir()]
    second = rank_of(tmp_path, attempt=2)
    facts = second.work()
    (plan,) = [facts for kind, facts in second.channel.said if kind == "plan"]

    assert all(not each.problem for each in checkpoints)
    assert plan["resumed"] == max(each.step for each in checkpoints) > 0
    assert facts["counters"]["updates"] == 4
    third = rank_of(tmp_path, attempt=3)
    third.work()

    assert "train" not in [facts["name"] for kind, facts in third.channel.said if kind == "phase"]


class Comparing(Team):
    """A team of one that keeps what ranks compare."""

    def __init__(self) -> None:
        super().__init__()
        self.compared = {}

    def compare(self, name, value, check):
        self.compared[name] = value


def test_what_ranks_compare(tmp_path):
    """Each rank plans for its own device: checkpoint, precision and bits of state must be those of rank 0."""
    alone = rank_of(tmp_path, optim_8bit=True)
    rank = Rank(alone.start, alone.channel, alone.token, Comparing())
    facts = rank.work()

    assert rank.team.compared == {
        "the checkpoint": "none",
        "precision and optimizer state": "no, 8 bits",
    }
    assert facts["optimizer"]["class"] == "AdamW8bit"


def test_a_row_that_is_not_a_number(tmp_path):
    """N1: a run whose every batch is not finite ends as diverged in the phase ``train``."""
    rank = rank_of(tmp_path, rows=4, blow_up_at=1, nonfinite_limit=2)
    with pytest.raises(Diverged, match="2 updates in a row after update 0"):
        rank.work()

    assert rank.phase == "train"
    assert rows(rank)[-1]["verdict"] == "failed: Diverged"


def test_replaying_here(finished, tmp_path):
    """The process that answers the controls needs the artifact, the start and nothing of the training."""
    rank, _ = finished
    question, answer = tmp_path / "question.json", tmp_path / "answer.json"
    question.write_text(json.dumps({"artifact": "weights", "controls": [[0.1] * 8]}))
    start = rank.layout.attempt(1) / "start.json"

    assert replay([str(start), str(question), str(answer)]) == 0
    assert len(read_json(answer)) == 1


@pytest.mark.parametrize("code", [ExitCode.SUCCEEDED, ExitCode.DIVERGED])
def test_an_outcome_on_a_full_disk(tmp_path, monkeypatch, code):
    """What cannot be written is said; a failure keeps its code, a success that nobody can read is none."""

    def full(path, document):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("app_trainer_sdk.training.rank.write_json", full)
    channel = RecordingChannel(CountingToken(0))
    outcome = _hand_in(outcome_document(code), tmp_path / "outcome-0.json", channel)

    assert outcome["exit_code"] == (ExitCode.DISK_FULL if code is ExitCode.SUCCEEDED else code)
    assert [(kind, facts["exit_code"]) for kind, facts in channel.said] == [("outcome", outcome["exit_code"])]
