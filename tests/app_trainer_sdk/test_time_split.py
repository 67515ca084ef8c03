"""Every second of a start belongs to one activity, so that they add up."""

from __future__ import annotations

import threading

import pytest

from app_trainer_sdk.time_split import ACTIVITIES, Stopwatch, counting, time_split, timed


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> float:
        self.now += seconds
        return self.now


def test_an_activity_inside_another_counts_once():
    """What is inside is not of what is around it, whatever ends it; the sum is the time that passed."""
    clock = Clock()
    watch = Stopwatch(clock)
    clock.now += 1
    with watch.on("compute"):
        clock.now += 2
        with pytest.raises(OSError, match="gone"), watch.on("data_wait"):
            raise OSError(f"gone at {clock.pass_by(4)}")
        clock.now += 8
    clock.now += 16

    assert watch.seconds() == {"idle": 17.0, "compute": 10.0, "data_wait": 4.0}
    assert sum(watch.seconds().values()) == clock.now - 100.0


def test_only_the_thread_that_is_counted_counts():
    """A checkpoint that is written beside training costs it nothing."""
    clock = Clock()
    watch = Stopwatch(clock)

    def save() -> None:
        with timed("checkpoint"):
            clock.now += 1

    with counting(watch), timed("compute"):
        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
    with timed("export"):  # nobody counts any more
        clock.now += 5

    assert watch.seconds() == {"compute": 1.0, "idle": 5.0}


def test_supervisor_and_rank_add_up_to_the_wall():
    """What a rank does not account for is its start; each activity is there, also with nothing."""
    own = {"idle": 0.5, "start": 1.0, "download": 2.0}
    split = time_split(own, 10.0, {"load": 3.0, "compute": 4.0, "idle": 0.25})

    assert split["wall_seconds"] == 13.5
    assert tuple(split["seconds"]) == ACTIVITIES
    assert sum(split["seconds"].values()) == pytest.approx(13.5)
    assert {name: value for name, value in split["seconds"].items() if value} == {
        "start": 3.75, "download": 2.0, "load": 3.0, "compute": 4.0, "idle": 0.75,
    }  # fmt: skip


def test_a_rank_that_left_nothing_has_no_activities():
    """Nobody invents what it did."""
    split = time_split({"idle": 1.0}, 10.0, {})

    assert split["seconds"]["idle"] == 11.0
