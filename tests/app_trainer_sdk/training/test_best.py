"""The best evaluation, and when patience runs out."""

from __future__ import annotations

import pytest

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.training.best import Best


def best(**asked):
    return Best(**{"metric": "loss", "lowest": True, "patience": 0, "wanted": False, **asked})


def test_lower_is_better_unless_asked_otherwise():
    """An equal value is no better one; the first is."""
    low, high = best(), best(lowest=False)

    assert [low.take(step, {"loss": value}) for step, value in enumerate((3.0, 3.0, 2.0, 4.0))] == [
        True, False, True, False
    ]  # fmt: skip
    assert [high.take(step, {"loss": value}) for step, value in enumerate((3.0, 2.0, 4.0))] == [
        True,
        False,
        True,
    ]
    assert (low.step, low.value, low.without_better) == (2, 2.0, 1)


def test_a_value_that_is_not_finite_is_never_the_best():
    """Evaluations write null for it."""
    tracker = best()

    assert not tracker.take(1, {"loss": None})
    assert tracker.step is None


def test_patience_counts_evaluations_in_a_row():
    """A better value starts the count anew; 0 never runs out."""
    tracker, endless = best(patience=2), best()
    for step, value in enumerate((3.0, 4.0, 2.0, 2.5)):
        tracker.take(step, {"loss": value})
        endless.take(step, {"loss": value})

    assert not tracker.exhausted
    tracker.take(5, {"loss": 2.5})
    assert tracker.exhausted
    assert not endless.exhausted


def test_an_unknown_metric_is_refused_only_where_it_is_needed():
    """With patience or export_from best, the names there are stand in the message."""
    best(metric="accuracy").check({"loss": 1.0})
    assert not best(metric="accuracy").take(1, {"loss": 1.0})
    with pytest.raises(BadJob, match=r"no 'accuracy'.*one of loss.*best_metric"):
        best(metric="accuracy", wanted=True).check({"loss": 1.0})


def test_its_state_is_taken_up_again():
    """A checkpoint's document brings back step, value and count."""
    tracker, again = best(), best()
    for step, value in enumerate((3.0, 4.0)):
        tracker.take(step, {"loss": value})
    again.take_up(tracker.document())

    assert again == tracker
