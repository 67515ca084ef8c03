"""Owns reading a stream: windows of equal size in its own order, and where it stands after each.

Every rank reads all records and makes items of its share alone, so the same records are trained for any number
of ranks. A window goes on into the next pass where one ends, so all of them are full. This file must not know
the loss or the optimizer.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy

from app_trainer_sdk.data_wait import ReadTimes
from app_trainer_sdk.errors import BadData, InternalError, refuse_other
from app_trainer_sdk.time_split import timed
from app_trainer_sdk.training.feed import LoadedWindow, cut_window, loaded_window, timed_batch
from app_trainer_sdk.training.order import Window
from app_trainer_sdk.training.randomness import Random, global_seeds
from app_trainer_sdk.values import JSON, Batch, Stream

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run


@dataclass(frozen=True)
class Place:
    """Where reading a stream stands.

    Attributes:
        epoch: the pass, from 0.
        records: records of that pass already read.
        state: what the stream itself says, when it resumes exactly.
        resume: how the stream resumes.
        not_exact_after: updates after which a resume could not go on where it was.
    """

    epoch: int = 0
    records: int = 0
    state: JSON = None
    resume: str = ""
    not_exact_after: tuple[int, ...] = ()

    def document(self) -> dict[str, JSON]:
        """As a checkpoint keeps it."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The place a checkpoint kept."""
        return cls(**{**document, "not_exact_after": tuple(document["not_exact_after"])})

    def taken_up(self, resume: str, updates: int) -> Self:
        """Where a stream that resumes so goes on. Where it cannot, that is its next pass, and is recorded."""
        if resume == self.resume != "not exact":
            return self
        broken = (*self.not_exact_after, updates)
        return type(self)(epoch=self.epoch + 1, resume=resume, not_exact_after=broken)


def told_place(values: Mapping[str, Any]) -> dict[str, JSON]:
    """What a result tells of the stream that a checkpoint's values speak of; nothing when there is none."""
    told = {name: each for name, each in values.get("stream", {}).items() if name != "state"}
    return {"stream": told} if told else {}


class StreamFeed:
    """Windows of a stream from a place on, for one rank.

    Args:
        trainer: makes batches.
        run: its handle.
        stream: the training data.
        place: where to go on.
        position: records trained before.
        global_batch, microbatch: as in the plan.
        rank, ranks: this rank's place.
    """

    def __init__(
        self, trainer: SupervisedTrainer, run: Run, stream: Stream, *, place: Place, position: int,
        global_batch: int, microbatch: int, rank: int = 0, ranks: int = 1,
    ) -> None:  # fmt: skip
        self.trainer = trainer
        self.run = run
        self.stream = stream
        self.place = place
        self.position = position
        self.global_batch = global_batch
        self.pieces = cut_window(trainer, global_batch, microbatch)
        self.share = list(enumerate(self.pieces))[rank::ranks]
        self._seeds_globals = bool(getattr(stream, "uses_global_random", False))

    def windows(self) -> Iterator[LoadedWindow]:
        """Windows without end; those of a stream without end of its own begin it again."""
        position, records = self.position, self._records()
        while True:
            started = time.perf_counter()
            epoch = self.place.epoch
            with timed("data_wait"):
                window_records = list(itertools.islice(records, self.global_batch))
                fetched = time.perf_counter() - started
                read = [
                    self._batch(window_records[start:end], position + start) for _, (start, end) in self.share
                ]
            ids = numpy.arange(position, position + self.global_batch, dtype=numpy.int64)
            window = Window(position, epoch, ids, position + self.global_batch)
            place = replace(self.place, state=self._state())
            seconds, waited = time.perf_counter() - started, ReadTimes(fetch=fetched)
            yield loaded_window(window, self.share, len(self.pieces), read, seconds, waited, place)
            position = window.after

    def _records(self) -> Iterator[Any]:
        """Records of all passes from the place on; it is moved past each before it is given."""
        while True:
            for record in self._rest_of_pass():
                self.run.check()
                self.place = replace(self.place, records=self.place.records + 1)
                yield record
            if not self.place.records:
                raise BadData(f"pass {self.place.epoch} of the training stream has no record", expected="one")
            self.place = replace(self.place, epoch=self.place.epoch + 1, records=0, state=None)

    def _rest_of_pass(self) -> Iterator[Any]:
        place = self.place
        if self.stream.resume == "exact":
            return iter(self.stream.begin(place.epoch, place.state))
        records = iter(self.stream.begin(place.epoch, None))
        for number in self.run.track(range(place.records), "read the stream again"):
            if next(records, _END) is _END:
                raise BadData(
                    f"pass {place.epoch} of the training stream ends after {number} records",
                    expected=f"at least {place.records}, which were read before the stop",
                    setting="repeatable=False in its IterableStream, if it is not the same each time",
                )  # fmt: skip
        return records

    def _batch(self, records: list[Any], first: int) -> tuple[Batch, ReadTimes]:
        return timed_batch(
            lambda: [self._item(record, first + number) for number, record in enumerate(records)],
            lambda items: refuse_other(self.trainer.collate(self.run, items), Batch, "collate"),
        )

    def _item(self, record: Any, number: int) -> Any:
        random = Random(self.run.settings.seed, "record", number)
        if not self._seeds_globals:
            return self.stream.item(record, random)
        with global_seeds(random.seed):
            return self.stream.item(record, random)

    def _state(self) -> JSON:
        """A copy, through JSON: what the stream gave may change while it goes on reading."""
        if self.stream.resume != "exact":
            return None
        state = self.stream.state()
        try:
            kept: JSON = json.loads(json.dumps(state, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise InternalError(
                f"the state of {type(self.stream).__name__} cannot be kept: {error}",
                expected="JSON: numbers, strings, lists and objects", setting="its state()",
            ) from error  # fmt: skip
        return kept


_END = object()
