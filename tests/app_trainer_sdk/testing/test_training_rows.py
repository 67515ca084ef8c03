"""The training data as the kit looks at it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from app_trainer_sdk.streams import IterableStream
from app_trainer_sdk.testing.training_rows import training_rows


class Trainer:
    """Gives what it is made with."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def dataset(self, run: Any, split: str) -> Any:
        return self._data if split == "train" else ()


def rows_of(data: Any, microbatch: int = 1) -> Any:
    return training_rows(Trainer(data), SimpleNamespace(settings=SimpleNamespace(microbatch=microbatch)))


def test_rows_are_looked_at_as_they_are():
    """No copy, and nothing read."""
    rows = [1, 2, 3]

    assert rows_of(rows) is rows


def test_of_a_stream_the_first_records_are_rows():
    """Eight at least, four microbatches where that is more, fewer where it ends; no record is read twice."""
    records: list[int] = []

    def read(epoch: int) -> Any:
        for number in range(30):
            records.append(number)
            yield number

    found = rows_of(IterableStream(read))

    assert (len(found), found.item(7, None)) == (8, 7)
    assert records == list(range(8))
    assert len(rows_of(IterableStream(lambda epoch: iter(range(100))), microbatch=5)) == 20
    assert len(rows_of(IterableStream(lambda epoch: iter(range(3))))) == 3
    assert not found.uses_global_random
