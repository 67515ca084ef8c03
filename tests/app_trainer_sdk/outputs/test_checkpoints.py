"""Checkpoints go up one at a time, the newest next; those that were overtaken are passed over."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from app_trainer_sdk.errors import UploadFailed
from app_trainer_sdk.outputs.checkpoints import CheckpointUploads
from app_trainer_sdk.transfers.effort import Throttle


class SlowSender:
    """Takes a checkpoint once it is let."""

    def __init__(self) -> None:
        self.tools = SimpleNamespace(throttle=Throttle(1.0))
        self.names: list[str] = []
        self.needs: dict[str, Any] = {}
        self.begun, self.let = threading.Semaphore(0), threading.Semaphore(0)
        self.fails: set[str] = set()
        self.priorities: set[int] = set()

    def in_a_hurry(self) -> SlowSender:
        self.tools.throttle.lift()
        return self

    def send(self, kind: str, name: str, folder: Path, *, check: Any, told: Any, needs: Any) -> int:
        self.priorities.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        self.begun.release()
        while not self.let.acquire(timeout=0.01):
            check()
        if name in self.fails:
            raise UploadFailed("away")
        self.names.append(name)
        self.needs[name] = needs
        return 10


def saved(folder: Path, step: int) -> Path:
    place = folder / f"step-{step:08d}"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text(json.dumps({"step": step, "files": {}, "run": "j"}))
    return place


def idle(uploads: CheckpointUploads) -> bool:
    return uploads.finish(lambda: True)


def test_the_best_is_named_though_it_was_sent_before(tmp_path: Path):
    """What is over there already is not sent again, and a resume from the newest is told of it all the same."""
    sender = SlowSender()
    sender.let.release(2)
    uploads = CheckpointUploads(sender, tmp_path / "aside", rows=tmp_path)
    uploads.saved(saved(tmp_path, 1))
    assert idle(uploads)
    second = saved(tmp_path, 2)
    (second / "state.json").write_text(json.dumps({"driver": {"best": {"step": 1}}}))
    uploads.saved(second)
    assert idle(uploads)

    assert sender.names == ["step-00000001", "step-00000002"]
    assert sender.needs == {"step-00000001": (), "step-00000002": ("step-00000001",)}
    uploads.drop()


def test_the_newest_is_next_and_those_between_are_passed_over(tmp_path: Path):
    """One that was begun is finished: else a slow line would never finish any."""
    sender = SlowSender()
    uploads = CheckpointUploads(sender, tmp_path / "aside", rows=tmp_path)
    uploads.saved(saved(tmp_path, 1))
    assert sender.begun.acquire(timeout=60)
    for step in (2, 3, 4):
        uploads.saved(saved(tmp_path, step))
    sender.let.release(2)
    assert sender.begun.acquire(timeout=60)

    assert idle(uploads)
    assert sender.names == ["step-00000001", "step-00000004"]
    assert [each["step"] for each in uploads.news() if isinstance(each, dict)] == [1, 4]
    assert uploads.bytes == 20
    assert min(sender.priorities) == 19  # training's threads have the processors first
    uploads.drop()
    assert not (tmp_path / "aside").exists()


def test_in_a_hurry_one_that_is_overtaken_is_given_up(tmp_path: Path):
    """At the end only the newest counts, and the pace is lifted."""
    sender = SlowSender()
    uploads = CheckpointUploads(sender, tmp_path / "aside", rows=tmp_path)
    uploads.saved(saved(tmp_path, 1))
    assert sender.begun.acquire(timeout=60)
    uploads.saved(saved(tmp_path, 2))
    threading.Thread(
        target=lambda: sender.begun.acquire(timeout=60) and sender.let.release(), daemon=True
    ).start()

    assert idle(uploads)
    assert sender.names == ["step-00000002"]
    assert sender.tools.throttle.rate == 0.0
    uploads.drop()


def test_one_that_fails_does_not_keep_the_next_from_going(tmp_path: Path):
    """It is told; the run goes on."""
    sender = SlowSender()
    sender.fails, uploads = {"step-00000001"}, CheckpointUploads(sender, tmp_path / "aside", rows=tmp_path)
    sender.let.release(2)
    uploads.saved(saved(tmp_path, 1))
    assert sender.begun.acquire(timeout=60)
    assert idle(uploads)
    uploads.saved(saved(tmp_path, 2))
    assert sender.begun.acquire(timeout=60)
    assert idle(uploads)
    first, second = uploads.news()

    assert isinstance(first, UploadFailed)
    assert second["step"] == 2
    uploads.drop()


def test_who_is_out_of_time_leaves_nothing_running(tmp_path: Path):
    """False, and after dropping nothing is sent."""
    sender = SlowSender()
    uploads = CheckpointUploads(sender, tmp_path / "aside", rows=tmp_path)
    uploads.saved(saved(tmp_path, 1))
    left = iter([True, True, False])

    assert not uploads.finish(lambda: next(left))
    uploads.drop()
    sender.let.release()
    uploads.saved(saved(tmp_path, 2))
    assert sender.names == []
