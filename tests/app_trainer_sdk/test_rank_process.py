"""One rank's process: what it finds around itself, and what is left of its end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from app_trainer_sdk.rank_process import RankProcess, rank_environment


def test_several_ranks_know_their_place(monkeypatch: pytest.MonkeyPatch):
    """Torch's variables and a share of the processors; one rank's environment has none of them."""
    for name in ("RANK", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    place = rank_environment(1, 2, 1234)
    asked = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

    assert {name: place[name] for name in asked} == {
        "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1234",
    }  # fmt: skip
    assert int(place["OMP_NUM_THREADS"]) >= 1
    assert "RANK" not in rank_environment(0, 1, 0)


def test_an_end_without_an_outcome_is_a_failure_and_its_log_tells(tmp_path: Path):
    """Status 0 does not mean that the work was done; of an appended log only this start's end counts."""
    rank = RankProcess(3, tmp_path)
    rank.log.parent.mkdir(parents=True)
    rank.log.write_text("of an earlier start")
    rank.begin([sys.executable, "-I", "-S", "-c", "print('last words')"], os.environ, [])
    rank.process.wait(30)
    rank.close()

    assert (rank.status, rank.failed) == (0, True)
    assert rank.said_last() == "last words\n"
    rank.outcome.write_text("{}")
    assert not rank.failed
