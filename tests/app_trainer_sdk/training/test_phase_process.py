"""A phase in a process of its own: its facts, its memory, its failure, and a wish to stop."""

from __future__ import annotations

import dataclasses
import os
import threading

import pytest
import torch
from phase_toys import GIB, Apart, kept
from torch_helpers import open_training

from app_trainer_sdk.errors import BadData, InternalError, StopRequested
from app_trainer_sdk.training.memory import CpuProbe
from app_trainer_sdk.training.phase_process import work_in_own_process
from app_trainer_sdk.training.phases import work_here


def opened(tmp_path, order, **options):
    (tmp_path / "order").write_text(order)
    return open_training(
        Apart, tmp_path / "job", updates=1, global_batch=1, cache=tmp_path / "cache",
        inputs={"order": tmp_path / "order"}, **options,
    )  # fmt: skip


def features(tmp_path):
    return [*(tmp_path / "cache" / "features").iterdir()]


def test_facts_come_back_and_memory_goes(tmp_path):
    """A13 row 9: the phase's files and facts are there; the GiB it leaks went with its process, as told."""
    before = CpuProbe().read().resident
    training = opened(tmp_path, "leak")
    after = CpuProbe().read().resident
    facts, row = training.run.facts["encode"], training.rows[-1]

    assert facts["process"] != os.getpid()
    assert facts["threads"] == torch.get_num_threads()
    assert (training.run.store["encode"] / "result").read_text() == "leak"
    assert row.peak == row.process["peak"] >= GIB
    assert row.process["phase"] == "encode"
    assert [inside["phase"] for inside in row.process["inside"]] == ["load"]
    assert 0 < after < before + GIB // 4
    assert row.verdict == "released"
    assert not kept
    assert opened(tmp_path, "leak").rows[-1].reused


@pytest.mark.parametrize(
    ("order", "kind", "message"),
    [("fail", BadData, "row 3 is empty; expected text"), ("odd", InternalError, "OddError: cannot travel"),
     ("die", InternalError, "the process of phase encode was killed by SIGKILL")],
)  # fmt: skip
def test_failures(tmp_path, order, kind, message):
    """What the phase raised is raised here, with its traceback; a death without a word is told."""
    with pytest.raises(kind, match=message) as caught:
        opened(tmp_path, order)

    if order != "die":
        assert "in encode" in caught.value.__notes__[0]
        assert features(tmp_path) == []


def test_a_wish_to_stop(tmp_path):
    """L4: a stop reaches the process within a second or two; it leaves nothing and is gone."""
    asked = threading.Event()

    def check():
        if asked.is_set():
            raise StopRequested("interrupted")

    def watch(label, done, total):
        asked.set()

    training = opened(tmp_path, "work")
    (tmp_path / "order").write_text("wait")
    run = dataclasses.replace(training.run, check=check, progress=watch)
    (phase,) = Apart().phases(run)
    with pytest.raises(StopRequested):
        work_in_own_process(Apart(), phase, run, tmp_path / "apart" / "result", work_here)

    assert asked.is_set()
    assert [*(tmp_path / "apart").iterdir()] == []
