"""Reading a stream: the same records for any ranks and cuts, and from any place on."""

from __future__ import annotations

import dataclasses
import itertools
import random

import numpy
import pytest
from torch_helpers import CountingToken, make_trainer, open_training

from app_trainer_sdk import IterableStream, StatefulStream
from app_trainer_sdk.errors import BadData, InternalError, StopRequested
from app_trainer_sdk.testing.toys import ToyReader
from app_trainer_sdk.training.stream_feed import Place, StreamFeed, told_place

KINDS = ["exact", "by replay"]


def drawn(record, draw):
    return record, draw.python.random()


def stream_of(kind, rows=11, item=drawn):
    if kind == "exact":
        return StatefulStream(lambda epoch: ToyReader(rows, epoch), item=item)
    return IterableStream(lambda epoch: ToyReader(rows, epoch), item=item)


def feed(
    tmp_path, stream, *, place=None, position=0, microbatch=2, batch=4, coupled=False, check=None, **ranks
):
    trainer = make_trainer(lambda run: None, None, stream, coupled_rows=coupled)
    run = open_training(trainer, tmp_path, updates=1, global_batch=batch, microbatch=batch).run
    if check is not None:
        run = dataclasses.replace(run, check=check)
    return StreamFeed(
        trainer(), run, stream, place=place or Place(resume=stream.resume), position=position,
        global_batch=batch, microbatch=microbatch, **ranks,
    )  # fmt: skip


def take(feeding, count):
    return [*itertools.islice(feeding.windows(), count)]


def pairs(windows):
    """(record, number drawn) of each window, in order."""
    return [
        [
            pair
            for each in sorted(window, key=lambda each: each.number)
            for pair in zip(each.batch.host["ids"], each.batch.host["values"], strict=True)
        ]
        for window in windows
    ]


def microbatches(windows):
    return [window.microbatches for window in windows]


@pytest.mark.parametrize("kind", KINDS)
def test_passes_follow_one_another(tmp_path, kind):
    """Every pass has every record once, in its own order; windows are full, across the end of a pass too."""
    windows = take(feed(tmp_path, stream_of(kind)), 11)
    records = [record for window in pairs(microbatches(windows)) for record, _ in window]
    passes = [records[start : start + 11] for start in range(0, 44, 11)]

    assert [sorted(each) for each in passes] == [[*range(11)]] * 4
    assert len({tuple(each) for each in passes}) == 4
    assert [each.window.ids.tolist() for each in windows[:2]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [each.window.epoch for each in windows] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_the_place_decides_what_is_read(tmp_path, kind):
    """B1: for every microbatch, 1, 2 and 4 ranks, and resumed after each window with another number of ranks,
    the same records come with the same augmentation.
    """  # fmt: skip
    whole = take(feed(tmp_path, stream_of(kind)), 9)
    expected = pairs(microbatches(whole))

    for microbatch in (1, 3, 4):
        assert pairs(microbatches(take(feed(tmp_path, stream_of(kind), microbatch=microbatch), 9))) == expected
    for after, ranks in itertools.product(range(1, 9), (1, 2, 4)):
        shares = [
            microbatches(
                take(
                    feed(
                        tmp_path, stream_of(kind), place=Place.from_document(whole[after - 1].place.document()),
                        position=4 * after, microbatch=1, rank=rank, ranks=ranks,
                    ),
                    9 - after,
                )
            )
            for rank in range(ranks)
        ]  # fmt: skip
        together = [[each for share in window for each in share] for window in zip(*shares, strict=True)]

        assert pairs(together) == expected[after:]


def test_coupled_rows_stay_together(tmp_path):
    """A loss whose rows see each other gets a window as one microbatch."""
    (window,) = take(feed(tmp_path, stream_of("exact"), coupled=True, microbatch=4), 1)

    assert [each.rows for each in window.microbatches] == [4]


def test_global_generators_are_seeded_for_each_record(tmp_path):
    """I1: a stream that draws from the global generators says so; the numbers follow from the position."""

    def item(record, draw):
        return record, [int(numpy.random.randint(10**9)), random.random()]

    stream = stream_of("exact", item=item)
    stream.uses_global_random = True
    windows = take(feed(tmp_path, stream), 4)
    (again,) = take(feed(tmp_path, stream, place=windows[2].place, position=12), 1)
    values = [tuple(value) for window in pairs(microbatches(windows)) for _, value in window]

    assert len(set(values)) == 16
    assert pairs([again.microbatches]) == pairs([windows[3].microbatches])


def test_a_state_that_cannot_be_kept(tmp_path):
    """A state that is no JSON is told when it is first taken, not when a job is resumed."""

    class Odd(ToyReader):
        def state_dict(self):
            return {"read": numpy.int64(1)}

    with pytest.raises(InternalError, match=r"the state of StatefulStream cannot be kept: .*int64"):
        take(feed(tmp_path, StatefulStream(lambda epoch: Odd(5, epoch), item=drawn)), 1)


def test_a_state_is_that_of_its_window(tmp_path):
    """What a source changes while it goes on reading does not change what was kept."""

    class Changing(ToyReader):
        kept = {"read": 0}  # noqa: RUF012 - one object for all states is the point

        def state_dict(self):
            self.kept["read"] = self._read
            return self.kept

    windows = take(feed(tmp_path, StatefulStream(lambda epoch: Changing(11, epoch), item=drawn)), 2)

    assert [each.place.state for each in windows] == [{"read": 4}, {"read": 8}]


def test_a_stream_without_a_record(tmp_path):
    """An empty pass is bad data, not an endless loop."""
    with pytest.raises(BadData, match="pass 0 of the training stream has no record"):
        take(feed(tmp_path, IterableStream(lambda epoch: [], item=drawn)), 1)


def test_a_replay_that_finds_less(tmp_path):
    """A stream that became shorter is not gone on with by guesswork."""
    place = Place(records=8, resume="by replay")
    with pytest.raises(BadData, match="ends after 5 records; expected at least 8, which were read"):
        take(feed(tmp_path, stream_of("by replay", rows=5), place=place, position=8), 1)


@pytest.mark.parametrize("records", [0, 100])
def test_a_stop_is_heard_while_reading(tmp_path, records):
    """L4: between any two records, those of a replay included."""
    token = CountingToken(7)
    reading = feed(
        tmp_path, stream_of("by replay", rows=200), place=Place(records=records, resume="by replay"),
        batch=16, check=token.place,
    )  # fmt: skip

    with pytest.raises(StopRequested):
        take(reading, 1)
    assert token.checks == 7


def test_what_a_result_tells():
    """All but the stream's own state; nothing where there is no stream."""
    place = Place(2, 5, {"large": "state"}, "exact", (7,))

    assert told_place({"stream": place.document()}) == {
        "stream": {"epoch": 2, "records": 5, "resume": "exact", "not_exact_after": (7,)}
    }
    assert told_place({}) == {}
