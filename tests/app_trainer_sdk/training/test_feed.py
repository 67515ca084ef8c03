"""Reading rows: the same items in the same order for any number of workers, ranks and cuts."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import time
from pathlib import Path

import numpy
import pytest
import torch
from torch_helpers import CPU, make_trainer, open_training

from app_trainer_sdk.errors import BadData
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training.feed import Feed, Rows, to_device
from app_trainer_sdk.training.order import Order
from app_trainer_sdk.training.row_facts import read_row_facts
from app_trainer_sdk.values import Batch


class Drawn:
    """Rows that are what the generators say."""

    def __init__(self, rows, *, globally=False):
        self.rows = rows
        self.uses_global_random = globally

    def __len__(self):
        return self.rows

    def item(self, index, draw):
        if self.uses_global_random:
            return index, [int(numpy.random.randint(10**9)), random.random(), float(torch.rand(()))]
        return index, [draw.python.random(), float(torch.rand((), generator=draw.torch()))]

    def weights(self):
        return numpy.arange(self.rows) % 4

    def lengths(self):
        return numpy.arange(self.rows) * 7 % 5

    def groups(self):
        return ["wide" if row % 3 else "tall" for row in range(self.rows)]


MODES = [
    ("shuffled", "mixed"), ("shuffled", "by_length"), ("shuffled", "by_group"), ("weighted", "mixed"),
    ("weighted", "by_length"), ("sequential", "mixed"),
]  # fmt: skip


def feed(
    tmp_path, dataset, *, workers=0, position=0, microbatch=2, batch=4, mode=MODES[0], coupled=False,
    minimum=1, **place,
):  # fmt: skip
    trainer = make_trainer(lambda run: None, None, dataset, coupled_rows=coupled, minimum_rows=minimum)
    run = open_training(trainer, tmp_path, updates=1, global_batch=batch).run
    rows = Rows(trainer(), run, dataset, seed=5)
    sampling, batching = mode
    asked = Hyperparameters(sampling=sampling, batching=batching)
    order = Order(
        len(dataset), batch, seed=5, minimum_rows=minimum, sampling=sampling, batching=batching,
        facts=read_row_facts(dataset, asked, "test"),
    )  # fmt: skip
    return Feed(rows, order, position=position, microbatch=microbatch, workers=workers, **place)


def take(feeding, count):
    """(ids, values) of ``count`` windows, microbatch by microbatch."""
    windows = feeding.windows()
    try:
        return [
            [(each.number, each.batch.host["ids"], each.batch.host["values"]) for each in window.microbatches]
            for window in itertools.islice(windows, count)
        ]
    finally:
        windows.close()


@pytest.mark.parametrize("globally", [False, True])
def test_workers_change_nothing(tmp_path, globally):
    """I1: two loader workers give the ids and values that none give, drawn positionally or globally."""
    dataset = Drawn(11, globally=globally)
    alone = take(feed(tmp_path, dataset), 7)
    helped = take(feed(tmp_path, dataset, workers=2), 7)

    assert alone == helped


# Torch finds four workers many for the cores of a small machine.
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_numbers_of_global_generators_never_repeat(tmp_path):
    """I1: eight rows, four workers, two epochs of numpy numbers: sixteen values, the same at a second run, and
    a resume in the second epoch gives the second epoch's.
    """  # fmt: skip
    dataset = Drawn(8, globally=True)

    def numbers(windows):
        return {
            (epoch // 2, row): value[0]
            for epoch, window in enumerate(windows)
            for _, ids, values in window
            for row, value in zip(ids, values, strict=True)
        }

    first = numbers(take(feed(tmp_path, dataset, workers=4), 4))
    again = numbers(take(feed(tmp_path, dataset, workers=4), 4))
    resumed = numbers([[], [], *take(feed(tmp_path, dataset, workers=4, position=8), 2)])

    assert len(set(first.values())) == 16
    assert again == first
    assert resumed == {key: value for key, value in first.items() if key[0] == 1}


def test_the_process_keeps_its_own_generators(tmp_path):
    """I1: reading rows, with workers or not, does not move the global generators of the training process."""
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    take(feed(tmp_path, Drawn(8, globally=True)), 2)
    take(feed(tmp_path, Drawn(8), workers=1), 2)

    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_a_window(tmp_path, ranks):
    """B1: the microbatches of all ranks together are one rank's, under equal numbers; a rank may have none."""
    dataset = Drawn(14)
    alone = take(feed(tmp_path, dataset, microbatch=1, batch=6), 3)
    shares = [
        take(feed(tmp_path, dataset, microbatch=1, batch=6, rank=rank, ranks=ranks), 3) for rank in range(ranks)
    ]

    for number, whole in enumerate(alone):
        windows = [share[number] for share in shares]

        assert sorted(each for window in windows for each in window) == sorted(whole)
        assert all(each[0] % ranks == rank for rank, window in enumerate(windows) for each in window)


def whole(windows):
    """(ids, values) of each window, however it was cut."""
    return [
        [pair for _, ids, values in sorted(window) for pair in zip(ids, values, strict=True)]
        for window in windows
    ]


def together(shares):
    """Windows of several ranks, each as one."""
    return [[each for window in windows for each in window] for windows in zip(*shares, strict=True)]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("mode", MODES, ids="-".join)
def test_nothing_but_the_position_decides_what_is_read(tmp_path, mode):
    """B1: in every mode, for 0, 2 and 4 workers, every microbatch, 1, 2 and 4 ranks, and resumed after three
    windows with another number of each, the same rows come with the same augmentation.
    """  # fmt: skip
    dataset, count, resumed = Drawn(22), 10, 3
    expected = whole(take(feed(tmp_path, dataset, mode=mode), count))
    position = sum(map(len, expected[:resumed]))

    for workers in (2, 4):
        assert whole(take(feed(tmp_path, dataset, mode=mode, workers=workers), count)) == expected
    for microbatch in (1, 3, 4):
        assert whole(take(feed(tmp_path, dataset, mode=mode, microbatch=microbatch), count)) == expected
    for ranks, ranks_before in ((2, 4), (4, 1), (1, 2)):
        before, after = (
            [
                take(
                    feed(tmp_path, dataset, mode=mode, microbatch=1, rank=rank, ranks=number, position=at), many
                )
                for rank in range(number)
            ]
            for number, at, many in ((ranks_before, 0, resumed), (ranks, position, count - resumed))
        )

        assert whole(together(before)) + whole(together(after)) == expected


def test_a_row_drawn_twice_is_augmented_twice(tmp_path):
    """With replacement a row comes again in one epoch, with other numbers each time."""
    windows = whole(take(feed(tmp_path, Drawn(22), mode=("weighted", "mixed")), 6))
    pairs = [pair for window in windows for pair in window]
    rows = [row for row, _ in pairs]

    assert len(pairs) == 22 > len(set(rows))
    assert len({tuple(values) for _, values in pairs}) == 22


def test_rows_that_see_each_other_are_never_cut(tmp_path):
    """A short rest merged into the last window makes it longer than a microbatch; coupled, it stays whole."""
    windows = take(feed(tmp_path, Drawn(9), coupled=True, minimum=2, microbatch=4), 2)
    parted = take(feed(tmp_path, Drawn(9), minimum=2, microbatch=4), 2)

    assert [[len(ids) for _, ids, _ in window] for window in windows] == [[4], [5]]
    assert [[len(ids) for _, ids, _ in window] for window in parted] == [[4], [2, 3]]


@pytest.mark.parametrize("position", [0, 4, 8, 11, 15])
def test_a_position_is_enough(tmp_path, position):
    """B1: reading from a position on gives what reading from the start gives there."""
    dataset = Drawn(11)
    everything = take(feed(tmp_path, dataset), 6)
    skipped = [0, 4, 8, 11, 15].index(position)

    assert take(feed(tmp_path, dataset, position=position), 6 - skipped) == everything[skipped:]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_row_is_told_as_it_is(tmp_path, workers):
    """An error of the dataset keeps its kind and its sentence, from a worker too."""

    class Bad(Drawn):
        def item(self, index, draw):
            raise BadData(f"row {index} has no answer", expected="the field answer")

    with pytest.raises(BadData, match="has no answer"):
        take(feed(tmp_path, Bad(8), workers=workers), 1)


def test_workers_end_with_the_iterator(tmp_path):
    """L4: closing the windows ends the loader's processes."""
    before = children()
    windows = feed(tmp_path, Drawn(8), workers=2).windows()
    next(windows)
    workers = children() - before
    windows.close()
    deadline = time.monotonic() + 60
    while children() & workers and time.monotonic() < deadline:
        time.sleep(0.02)

    assert len(workers) == 2
    assert not children() & workers


def children():
    """Processes that this one started and that still are there."""
    found: set[str] = set()
    for thread in Path(f"/proc/{os.getpid()}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended since it was listed
            found |= set((thread / "children").read_text().split())
    return found


def test_a_batch_on_the_cpu_stays():
    """Nothing is copied where there is no device to copy to."""
    batch = Batch({"x": torch.ones(2)}, units=2.0)

    assert to_device(batch, CPU) is batch
