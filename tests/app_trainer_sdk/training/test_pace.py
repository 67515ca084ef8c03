"""What is told of time: rates by this start's updates, percentiles of the last ones."""

from __future__ import annotations

import pytest

from app_trainer_sdk.training.pace import WINDOW, Pace
from app_trainer_sdk.values import StepInfo


def info(step: int, *, waited: float = 0.0, transfer: float = 0.0) -> StepInfo:
    return StepInfo(step, 1.0, examples=8, data_seconds=waited, data_parts={"transfer": transfer})


def test_time_left_follows_from_the_updates_after_the_first():
    """The first warms up and is no pace; a resumed start counts its own updates only."""
    pace = Pace(updates=110)
    pace.add(info(11), 5.0)
    first = pace.facts(5.0, 11)
    pace.add(info(12), 0.5)
    second = pace.facts(5.5, 12)

    assert (first["updates_per_second"], first["eta_seconds"]) == (0.2, None)
    assert (second["updates_per_second"], second["eta_seconds"]) == (2.0, 49.0)


def test_percentiles_and_examples_are_of_the_last_updates():
    """A slow start is forgotten; one slow update in twenty is the 95th percentile's to tell."""
    pace = Pace(updates=1000)
    pace.add(info(1), 60.0)
    for step in range(WINDOW):
        pace.add(info(step + 2), 1.0 if step % 10 == 0 else 0.1)
    told = pace.facts(100.0, WINDOW + 1)

    assert (told["seconds_p50"], told["seconds_p95"]) == (0.1, 1.0)
    assert told["examples_per_second"] == pytest.approx(8 * WINDOW / (26 * 1.0 + 230 * 0.1))


def test_one_update_is_its_own_percentiles():
    """As is right from the first event on."""
    pace = Pace(updates=2)
    pace.add(info(1), 0.25)
    told = pace.facts(0.25, 1)

    assert (told["seconds_p50"], told["seconds_p95"], told["examples_per_second"]) == (0.25, 0.25, 32.0)


def test_the_share_of_waiting_is_of_the_whole_start():
    """Waiting for data and handing it to the device, of all the time; never above 1."""
    pace = Pace(updates=9)
    pace.add(info(1, waited=0.1, transfer=0.1), 1.0)
    pace.add(info(2, waited=0.4), 1.0)

    assert pace.facts(2.0, 2)["data_wait_share"] == pytest.approx(0.3)
