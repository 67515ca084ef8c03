"""The order of examples: a pure function of seed, epoch and position, whatever the batch and the cuts."""

from __future__ import annotations

import itertools

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_trainer_sdk.training.order import Order, cut
from app_trainer_sdk.training.row_facts import RowFacts
from app_trainer_sdk.windows import updates_per_epoch

ROWS = st.integers(1, 60)
SEEDS = st.integers(0, 2**63 - 1)


def epochs(order, count=1):
    """The windows of the first epochs."""
    found = [order.window(0)]
    while found[-1].after < count * order.rows:
        found.append(order.window(found[-1].after))
    return found


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


def facts_of(rows, groups=3):
    numbers = numpy.arange(rows)
    return RowFacts(
        weights=(numbers % 5) / 4, lengths=numbers * 7 % 11 + 0.0, groups=numbers % groups,
        names=tuple(map(str, range(groups))),
    )  # fmt: skip


MODES = [
    ("shuffled", "mixed"), ("shuffled", "by_length"), ("shuffled", "by_group"), ("weighted", "mixed"),
    ("weighted", "by_length"), ("sequential", "mixed"),
]  # fmt: skip


@pytest.mark.parametrize(("sampling", "batching"), MODES)
@given(rows=st.integers(9, 60), batch=st.integers(1, 20), seed=SEEDS, minimum=st.integers(1, 3))
def test_every_mode_cuts_whole_epochs(sampling, batching, rows, batch, seed, minimum):
    """B1: windows follow one another without a gap; unweighted, an epoch has every row once; asked anew in
    another order, the same windows come.
    """  # fmt: skip
    batch = max(min(batch, rows), minimum)
    mode = {"minimum_rows": minimum, "sampling": sampling, "batching": batching, "facts": facts_of(rows)}
    order = Order(rows, batch, seed=seed, **mode)
    found = epochs(order, 3)
    fresh = Order(rows, batch, seed=seed, **mode)
    again = [fresh.window(each.position) for each in reversed(found)][::-1]

    assert [each.position for each in found[1:]] == [each.after for each in found[:-1]]
    assert found[-1].after == 3 * rows
    assert [each.digest() for each in again] == [each.digest() for each in found]
    assert all(minimum <= len(each.ids) < batch + minimum for each in found)
    for epoch in range(3):
        ids = numpy.concatenate([each.ids for each in found if each.epoch == epoch])
        assert len(ids) == rows
        if sampling != "weighted":
            assert sorted(ids.tolist()) == [*range(rows)]
        if sampling == "sequential":
            assert ids.tolist() == [*range(rows)]


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6), batch=st.integers(1, 12), seed=SEEDS)
def test_a_window_by_group_has_rows_of_one_group(sizes, batch, seed):
    """Every window has rows of one group, at most one of each group is short, and windows come mixed."""
    groups = numpy.random.Generator(numpy.random.Philox(key=1)).permutation(
        numpy.repeat(numpy.arange(len(sizes)), sizes)
    )
    facts = RowFacts(groups=groups, names=tuple(map(str, range(len(sizes)))))
    order = Order(len(groups), batch, seed=seed, batching="by_group", facts=facts)
    found = windows(order, sum(-(-size // batch) for size in sizes))
    of = [set(groups[each.ids].tolist()) for each in found]
    short = [(each.ids.size, *group) for each, group in zip(found, of, strict=True) if each.ids.size < batch]

    assert found[-1].after == len(groups)
    assert {len(each) for each in of} == {1}
    assert sorted(short) == sorted((size % batch, at) for at, size in enumerate(sizes) if size % batch)


def test_windows_by_length_are_of_similar_length_and_come_mixed():
    """Sorted stretches of windows: within a window lengths differ little; the windows are shuffled."""
    rows, batch = 4000, 10
    lengths = numpy.random.Generator(numpy.random.Philox(key=2)).integers(1, 1000, rows).astype(float)
    mixed = Order(rows, batch, seed=1)
    sorted_ = Order(rows, batch, seed=1, batching="by_length", facts=RowFacts(lengths=lengths))

    def spread(order):
        return numpy.mean([numpy.ptp(lengths[each.ids]) for each in windows(order, rows // batch)])

    means = [lengths[each.ids].mean() for each in windows(sorted_, 50)]

    assert spread(sorted_) < spread(mixed) / 20
    assert 15 < sum(one < other for one, other in itertools.pairwise(means)) < 35


def test_rows_are_drawn_in_the_shares_of_their_weights():
    """A weight of 0 is never drawn, and the others as often as they weigh."""
    weights = numpy.array([0, 1, 0, 3, 6, 0] * 100) / 6
    order = Order(600, 6, seed=3, sampling="weighted", facts=RowFacts(weights=weights))
    ids = order.epoch(0).ids
    many = [order.epoch(number).ids for number in range(50)]
    shares = numpy.bincount(numpy.concatenate(many) % 6, minlength=6) / 30_000

    assert len(set(ids.tolist())) < len(ids) == 600
    assert shares[[0, 2, 5]].tolist() == [0, 0, 0]
    assert shares[[1, 3, 4]] == pytest.approx([0.1, 0.3, 0.6], abs=0.01)


def test_the_next_epoch_is_kept_beside_this_one():
    """Workers that read ahead over the end of an epoch do not make either order anew with each window."""
    order = Order(20, 4, seed=1)
    first, second = order.epoch(0), order.epoch(1)

    assert order.epoch(0) is first
    assert order.epoch(1) is second
    assert order.epoch(2) is not None
    assert order.epoch(1) is second


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


@pytest.mark.parametrize(
    ("sampling", "batching", "expected"),
    [
        ("weighted", "mixed", [[7, 4, 3, 2], [8, 8, 3, 9], [9, 7]]),
        ("shuffled", "by_length", [[3, 6, 1, 2], [9, 4, 5, 0], [7, 8]]),
        ("shuffled", "by_group", [[3, 6, 0, 9], [1, 4, 7], [2, 5, 8]]),
        ("sequential", "mixed", [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
    ],
)
def test_the_order_of_every_mode_is_the_same_for_ever(sampling, batching, expected):
    """As above, with weights, lengths and groups."""
    order = Order(10, 4, seed=42, sampling=sampling, batching=batching, facts=facts_of(10))

    assert [each.ids.tolist() for each in epochs(order)] == expected


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


@pytest.mark.parametrize(("sampling", "batching"), MODES)
def test_a_position_inside_a_window(sampling, batching):
    """B1: a resume with another batch may come out inside a window: mixed rows are cut anew from there; of
    others the rest is trained, if long enough. Either way no row of the pass comes twice.
    """  # fmt: skip
    order = Order(30, 5, seed=1, minimum_rows=2, sampling=sampling, batching=batching, facts=facts_of(30))
    first, second = windows(order, 2)
    inside, end = order.window(3), order.window(4)

    if batching == "mixed":
        assert (inside.ids.tolist(), inside.after) == (order.epoch(0).ids[3:8].tolist(), 8)
    else:
        assert (inside.ids.tolist(), inside.after) == (first.ids[3:].tolist(), first.after)
        assert (end.digest(), end.after) == (second.digest(), second.after)


@given(count=st.integers(1, 200), microbatch=st.integers(1, 40), minimum=st.integers(1, 6))
def test_cuts_cover_and_are_never_too_small(count, microbatch, minimum):
    """I3: microbatches follow one another, miss no row, and none is below the least number of rows."""
    pieces = cut(count, microbatch, minimum_rows=minimum)
    sizes = [end - start for start, end in pieces]

    assert [row for start, end in pieces for row in range(start, end)] == [*range(count)]
    assert min(sizes) >= min(minimum, count)
    assert max(sizes) <= (microbatch if minimum == 1 else microbatch + 2 * minimum)
