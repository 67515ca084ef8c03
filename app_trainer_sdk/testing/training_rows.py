"""Owns the training data as the kit looks at it: rows, or the first records of a stream as rows.

It must not know any promise. Importing this file does not import torch.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from app_trainer_sdk.values import Dataset, Stream

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.training.randomness import Random


class FirstRecords:
    """The first records of a stream as a dataset."""

    def __init__(self, stream: Stream, count: int) -> None:
        self.uses_global_random = bool(getattr(stream, "uses_global_random", False))
        self._stream = stream
        self._records = list(itertools.islice(stream.begin(0, None), count))

    def __len__(self) -> int:
        return len(self._records)

    def item(self, index: int, random: Random) -> Any:
        return self._stream.item(self._records[index], random)


def training_rows(trainer: SupervisedTrainer, run: Run) -> Dataset:
    """The training split; of a stream as many records as the promises look at."""
    data = trainer.dataset(run, "train")
    if not isinstance(data, Stream):
        return data
    return FirstRecords(data, max(8, 4 * run.settings.microbatch))
