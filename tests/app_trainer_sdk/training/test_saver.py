"""Saving behind training's back: in order, one at a time, errors told where training looks next."""

from __future__ import annotations

import threading

import pytest

from app_trainer_sdk.training.saver import Saver


def test_work_does_not_hold_the_caller():
    """``start`` returns while the work still runs."""
    gate, done = threading.Event(), []
    saver = Saver()
    saver.start(lambda: (gate.wait(60), done.append(True)))

    assert done == []
    gate.set()
    saver.finish()
    assert done == [True]


def test_a_second_piece_waits_for_the_first():
    """At most one copy of the state is being written."""
    order = []
    saver = Saver()
    for number in range(5):
        saver.start(lambda number=number: order.append(number))
    saver.finish()

    assert order == [0, 1, 2, 3, 4]


def test_an_error_is_raised_where_training_looks_next_and_once():
    """A full disk found by the thread becomes the training thread's."""
    saver = Saver()

    def fail():
        raise OSError(28, "No space left on device")

    saver.start(fail)
    with pytest.raises(OSError, match="No space left"):
        saver.finish()
    saver.raise_if_failed()
    saver.start(lambda: None)
    saver.finish()
    assert saver._error is None


def test_an_error_is_not_lost_when_the_next_save_begins():
    """``start`` raises what the one before it raised, before beginning."""
    saver, begun = Saver(), []

    def fail():
        raise ValueError("first")

    saver.start(fail)
    with pytest.raises(ValueError, match="first"):
        saver.start(lambda: begun.append(True))

    assert begun == []
