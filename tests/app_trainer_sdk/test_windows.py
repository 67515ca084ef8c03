"""The arithmetic of windows: sizes that add up, and an order that is the same for ever."""

from __future__ import annotations

from hypothesis import assume, given
from hypothesis import strategies as st

from app_trainer_sdk.windows import (
    examples_seen,
    group_window_sizes,
    shuffled,
    updates_per_epoch,
    window_sizes,
)

ROWS, BATCH, LEAST = st.integers(1, 200), st.integers(1, 50), st.integers(1, 8)


@given(ROWS, BATCH, LEAST)
def test_sizes_add_up(rows, batch, least):
    """As many windows as are counted, all rows in them, none too small."""
    assume(rows >= least <= batch)
    sizes = window_sizes(rows, batch, least)

    assert sum(sizes) == rows
    assert min(sizes) >= least
    assert set(sizes[:-1]) <= {batch}
    assert len(sizes) == max(1, updates_per_epoch(rows, batch, least))


def test_sizes_of_groups():
    """Each group has its own short window, or merges it."""
    assert group_window_sizes([5, 8, 3], 4) == [4, 1, 4, 4, 3]
    assert group_window_sizes([5, 8, 3], 4, 2) == [5, 4, 4, 3]


def test_the_order_of_windows_is_the_same_for_ever():
    """What seed 42 means: a change breaks every checkpoint there is."""
    assert shuffled(6, seed=42, epoch=0) == [0, 3, 4, 5, 1, 2]
    assert shuffled(6, seed=42, epoch=1) != shuffled(6, seed=42, epoch=0)


def test_examples_of_groups_depend_on_where_the_short_windows_are():
    """Whole epochs have all rows; what a part of one has follows from the seed."""
    sizes = group_window_sizes([5, 8, 3], 4)
    found = [examples_seen(updates, 16, 4, groups=[5, 8, 3], seed=42) for updates in range(len(sizes) + 1)]

    assert found == [sum(sizes[each] for each in shuffled(5, seed=42, epoch=0)[:count]) for count in range(6)]
    assert examples_seen(10, 16, 4, groups=[5, 8, 3]) == 32
