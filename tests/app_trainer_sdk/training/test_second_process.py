"""A process that works beside this one."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal

import pytest
import torch

from app_trainer_sdk.training.second_process import both, second_process


def double(number):
    return 2 * number, os.getpid()


def refuse(text):
    raise ValueError(text)


def end():
    os._exit(1)


def multiply():
    """Large enough for torch to take several threads where it may."""
    return int((torch.ones(300, 300) @ torch.ones(300, 300)).sum()), torch.get_num_threads()


def fails_elsewhere(here):
    if os.getpid() != here:
        end()
    return "done"


def hangs_elsewhere(here):
    if os.getpid() != here:
        signal.pause()
    return "done"


def test_two_tasks_are_done_side_by_side_and_nothing_stays():
    before = {*multiprocessing.active_children()}
    with second_process(2):
        here, there = both(functools.partial(double, 1), functools.partial(double, 2))

    assert (here[0], there[0]) == (2, 4)
    assert here[1] == os.getpid() != there[1]
    assert not {*multiprocessing.active_children()} - before


def twice():
    return both(functools.partial(double, 1), functools.partial(double, 2))


def test_a_task_there_with_two_tasks_does_both():
    """It does not wait for itself."""
    with second_process(2):
        (_, here), there = both(functools.partial(double, 1), twice)

    assert len({here, *(process for _, process in there)}) == 2


def test_one_processor_does_both():
    with second_process(1):
        assert both(functools.partial(double, 1), functools.partial(double, 2)) == (
            (2, os.getpid()), (4, os.getpid()),
        )  # fmt: skip


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_is_the_same_with_and_without_it(count):
    """Also that of the first task, whatever became of the second."""
    with second_process(count), pytest.raises(ValueError, match=r"^second$"):
        both(functools.partial(double, 1), functools.partial(refuse, "second"))
    with second_process(count), pytest.raises(ValueError, match=r"^first$"):
        both(functools.partial(refuse, "first"), functools.partial(refuse, "second"))


def test_what_dies_there_is_done_here():
    with second_process(2):
        assert both(int, functools.partial(fails_elsewhere, os.getpid())) == (0, "done")
        assert both(int, functools.partial(fails_elsewhere, os.getpid())) == (0, "done")


def test_what_hangs_there_is_done_here_and_ends():
    before = {*multiprocessing.active_children()}
    with second_process(2):
        assert both(int, functools.partial(hangs_elsewhere, os.getpid()), patience=0.2) == (0, "done")
        assert both(int, functools.partial(double, 2)) == (0, (4, os.getpid()))
    assert not {*multiprocessing.active_children()} - before


def test_only_its_own_process_is_ended():
    other = multiprocessing.get_context("fork").Process(target=signal.pause)
    with second_process(2):
        both(int, int)
        other.start()
        try:
            assert both(int, functools.partial(hangs_elsewhere, os.getpid()), patience=0.2) == (
                0,
                "done",
            )
            assert other.is_alive()
        finally:
            other.kill()
            other.join()


def test_an_error_here_does_not_wait_for_what_hangs_there():
    before = {*multiprocessing.active_children()}
    hangs = functools.partial(hangs_elsewhere, os.getpid())
    with pytest.raises(ValueError, match=r"^first$"), second_process(2):
        both(functools.partial(refuse, "first"), hangs)
    assert not {*multiprocessing.active_children()} - before


def test_what_cannot_be_sent_is_done_here():
    with second_process(2):
        assert both(int, lambda: "here") == (0, "here")


def test_it_computes_with_one_thread_since_those_of_this_process_are_not_there():
    multiply()
    with second_process(2):
        assert both(int, multiply)[1] == (300**3, 1)
