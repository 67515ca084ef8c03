"""A wish to stop is noticed inside every long thing a rank does, though that never looks for one."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from torch_helpers import RecordingChannel

from app_trainer_sdk.channel import StopToken
from app_trainer_sdk.checkpoints import inspect_checkpoint
from app_trainer_sdk.errors import StopRequested
from app_trainer_sdk.start import Start
from app_trainer_sdk.testing import toys
from app_trainer_sdk.training import checkpoint, interrupts, rank, wrap

JOB = {
    "schema": "app.trainer.job/v1", "job_id": "j", "trainer": "app_trainer_sdk.testing.toys:ToyTrainer",
    "model": "toy-mlp",
}  # fmt: skip
SETTINGS = {"rows": 12, "validation_rows": 3, "updates": 4, "global_batch": 4, "checkpoint_every": 2}
LONG_SECONDS = 60.0


class Sleeper:
    """Stands in for something that takes a minute from its n-th call on, and says when it began."""

    def __init__(self, real, calls):
        self.real = real
        self.calls = calls
        self.inside = threading.Event()

    def __call__(self, *arguments, **named):
        self.calls -= 1
        if self.calls <= 0:
            self.inside.set()
            limit = time.monotonic() + LONG_SECONDS
            while time.monotonic() < limit:  # a wait that a signal only shortens, as a library's is
                time.sleep(LONG_SECONDS)
        return self.real(*arguments, **named)


@pytest.fixture
def worker(tmp_path):
    """A rank in this process whose wishes come as they do from a supervisor."""
    before = signal.getsignal(interrupts.SIGNAL)
    token = StopToken()
    interrupts.install(token)

    def make(**settings):
        start = Start(
            directory=str(tmp_path), attempt=1, cache=str(tmp_path / "cache"),
            job={**JOB, "hyperparameters": {**SETTINGS, **settings}},
        )  # fmt: skip
        start.save()
        return rank.Rank(start, RecordingChannel(token), token)

    yield make
    interrupts._token = None
    signal.signal(interrupts.SIGNAL, before)


def stopped(worker, sleeper, *wishes):
    """Ask once the sleeper sleeps; how many seconds it took, and the newest whole checkpoint."""
    asked_at = []

    def ask():
        sleeper.inside.wait(LONG_SECONDS)
        for wish in wishes or ({},):
            asked_at.append(time.monotonic())
            worker.token.request("interrupted", **wish)
            for _ in range(5):  # as the channel does, though oftener
                interrupts.nudge()
                time.sleep(0.2)

    asker = threading.Thread(target=ask)
    asker.start()
    with pytest.raises(StopRequested) as caught:
        worker.work()
    seconds = time.monotonic() - asked_at[-1]
    asker.join()
    found = [inspect_checkpoint(each) for each in (worker.layout.root / "checkpoints").glob("step-*")]

    assert caught.value.reason == "interrupted"
    assert not [each.problem for each in found if each.problem]
    return seconds, max((each.step for each in found), default=None)


#: What sleeps, from which call on, and the update that the checkpoint left behind is of.
PLACES = {
    "examine": (toys.ToyTrainer, "examine", 1, None),
    "a phase": (rank, "prepare", 1, None),
    "building the model": (toys.ToyTrainer, "build_model", 1, None),
    "compiling": (wrap, "compile_blocks", 1, None),
    "an item": (toys.ToyRows, "item", 4 + 3, 0),
    "a microbatch": (toys.ToyTrainer, "loss", 2, 1),
    "an evaluation": (toys.ToyTrainer, "measure", 2, 2),
    "an export": (toys.ToyTrainer, "export", 1, 4),
}


@pytest.mark.parametrize("place", PLACES)
def test_noticed(worker, monkeypatch, place):
    """L4, A13 row 2: at once, and what was done is kept."""
    owner, name, calls, step = PLACES[place]
    sleeper = Sleeper(getattr(owner, name), calls)

    def slow(*arguments, **named):
        return sleeper(*arguments, **named)

    monkeypatch.setattr(owner, name, slow)
    every = 2 if place == "an evaluation" else 0
    seconds, kept = stopped(
        worker(torch_compile=place == "compiling", evaluate_every=every, microbatch=4), sleeper
    )

    assert seconds < LONG_SECONDS / 3
    assert kept == step


def test_a_save_that_takes_long(worker, monkeypatch):
    """L4: a first wish lets a save end; a second one does not wait for it. The one before is whole."""
    sleeper = Sleeper(checkpoint.CheckpointStore.save, 2)

    def slow(*arguments, **named):
        return sleeper(*arguments, **named)

    monkeypatch.setattr(checkpoint.CheckpointStore, "save", slow)
    seconds, kept = stopped(worker(evaluate_every=0), sleeper, {}, {"checkpoint": False})

    assert seconds < LONG_SECONDS / 3
    assert kept == 2
