"""The order of examples: a pure function of seed, epoch and position, whatever the batch and the cuts."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_trainer_sdk.plan import updates_per_epoch
from app_trainer_sdk.training.order import Order, cut

ROWS = st.integers(1, 60)
SEEDS = st.integers(0, 2**63 - 1)


def windows(order, count, position=0):
    found = []
    for _ in range(count):
        found.append(order.window(position))
        position = found[-1].after
    return found


@given(rows=ROWS, batch=st.integers(1, 20), seed=SEEDS, minimum=st.integers(1, 4))
def test_every_epoch_is_a_permutation(rows, batch, seed, minimum):
    """B1: as many windows as the plan says make one epoch, and visit every row once."""
    batch = min(batch, rows)
    if rows < minimum or batch < minimum:
        return
    per_epoch = updates_per_epoch(rows, batch, minimum)
    found = windows(Order(rows, batch, seed=seed, minimum_rows=minimum), 2 * per_epoch)

    for epoch in (0, 1):
        ids = [each.ids for each in found if each.epoch == epoch]
        assert sorted(numpy.concatenate(ids).tolist()) == [*range(rows)]
        assert len(ids) == per_epoch
    assert min(len(each.ids) for each in found) >= min(minimum, rows)


@given(rows=ROWS, batch=st.integers(1, 20), seed=SEEDS, skip=st.integers(0, 10))
def test_a_window_depends_on_its_position_alone(rows, batch, seed, skip):
    """B1: asked anew from any position, in any order, the same windows come."""
    batch = min(batch, rows)
    found = windows(Order(rows, batch, seed=seed), skip + 3)
    fresh = Order(rows, batch, seed=seed)
    again = [fresh.window(each.position) for each in reversed(found)][::-1]

    assert [each.digest() for each in again] == [each.digest() for each in found]
    assert [each.after for each in again] == [each.after for each in found]
    assert [each.position for each in found[1:]] == [each.after for each in found[:-1]]


def test_other_seeds_and_epochs_are_other_orders():
    """B1: seeds and epochs give different permutations, and digests tell order apart, not only content."""
    one, other = Order(50, 50, seed=1), Order(50, 50, seed=2)
    digests = {one.window(0).digest(), one.window(50).digest(), other.window(0).digest()}

    assert len(digests) == 3


def test_the_order_is_the_same_for_ever():
    """These ids are what seed 42 means: a change breaks every checkpoint there is."""
    order = Order(10, 4, seed=42)

    assert [each.ids.tolist() for each in windows(order, 4)] == [
        [3, 6, 2, 1],
        [0, 9, 5, 4],
        [8, 7],
        [0, 8, 5, 2],
    ]


def test_a_far_position_costs_no_replay():
    """B1: a window ten million epochs away is found at once."""
    order = Order(7, 3, seed=1)
    far = order.window(7 * 10_000_000 + 3)

    assert (far.epoch, len(far.ids), far.after) == (10_000_000, 3, 7 * 10_000_000 + 6)


@pytest.mark.parametrize(
    ("rows", "minimum", "lengths"),
    [(9, 1, [4, 4, 1]), (9, 2, [4, 5]), (10, 2, [4, 4, 2]), (8, 2, [4, 4]), (5, 2, [5]), (11, 4, [4, 7])],
)
def test_a_rest_too_short_is_merged(rows, minimum, lengths):
    """I3: a last window below the least number of rows joins the one before it."""
    order = Order(rows, 4, seed=1, minimum_rows=minimum)

    assert [len(each.ids) for each in windows(order, len(lengths))] == lengths


def test_a_rest_that_nobody_can_train_on():
    """I3: where a resume with other rows comes out at a rest too short for a window, the next pass begins."""
    order = Order(10, 4, seed=1, minimum_rows=2)
    window = order.window(9)

    assert (window.epoch, window.after) == (1, 14)
    assert window.digest() == order.window(10).digest()


@given(count=st.integers(1, 200), microbatch=st.integers(1, 40), minimum=st.integers(1, 6))
def test_cuts_cover_and_are_never_too_small(count, microbatch, minimum):
    """I3: microbatches follow one another, miss no row, and none is below the least number of rows."""
    pieces = cut(count, microbatch, minimum_rows=minimum)
    sizes = [end - start for start, end in pieces]

    assert [row for start, end in pieces for row in range(start, end)] == [*range(count)]
    assert min(sizes) >= min(minimum, count)
    assert max(sizes) <= (microbatch if minimum == 1 else microbatch + 2 * minimum)
