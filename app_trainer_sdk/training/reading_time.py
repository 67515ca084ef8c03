"""Owns measuring how long reading takes, before training: a few rows, in a process that leaves nothing.

The child is forked as loader workers are, so random generators, open files, caches and memory of this process
stay as they are, and rows get the randomness of their positions; a run that was measured makes the numbers of
one that was not. This file must not know what is made of the answer.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from statistics import fmean
from typing import TYPE_CHECKING, Any

from app_trainer_sdk.fetch_time import take_fetch_seconds
from app_trainer_sdk.limits import private_memory, shared_memory
from app_trainer_sdk.planning.workers import Reading
from app_trainer_sdk.training.data_worker import start_worker
from app_trainer_sdk.training.feed import Rows
from app_trainer_sdk.values import Batch, Stream

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run

#: Reading stops after so long, or so many microbatches; opening the dataset may take the rest of the last.
READ_SECONDS, MOST_BATCHES, MOST_SECONDS = 0.75, 5, 5.0
POLL_SECONDS = 0.05


def measure_reading(
    trainer: SupervisedTrainer, run: Run, *, most_seconds: float = MOST_SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Reading:  # fmt: skip
    """Seconds and bytes of a row of the training split, from a few of them; the settings are resolved.

    Args:
        trainer: reads.
        run: its handle, prepared.
        most_seconds: the child is ended then, and nothing is known.
        clock: seconds, monotonic.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, trainer, run), daemon=True)
    child.start()
    theirs.close()
    try:
        return _hear(ours, run, clock() + most_seconds, clock, most_seconds)
    finally:
        if child.is_alive():
            child.kill()
        child.join()
        child.close()
        ours.close()


def _hear(line: Any, run: Run, until: float, clock: Callable[[], float], most_seconds: float) -> Reading:
    while not line.poll(POLL_SECONDS):
        run.check()
        if clock() > until:
            return Reading(problem=f"the dataset gave too little within {most_seconds:g} s")
    try:
        answer: Reading = line.recv()
    except EOFError:
        return Reading(problem="a process of its own died reading", forks=False)
    return answer


def _answer(line: Any, trainer: SupervisedTrainer, run: Run) -> None:
    """The child's work."""
    start_worker(0)
    try:
        answer = _read(trainer, run)
    except BaseException as error:  # noqa: BLE001 - training meets it again, and tells it as its own
        answer = Reading(problem=f"{type(error).__name__}: {error}"[:200], forks=False)
    line.send(answer)
    line.close()


def _read(trainer: SupervisedTrainer, run: Run) -> Reading:
    train = trainer.dataset(run, "train")
    assert not isinstance(train, Stream)
    rows = Rows(trainer, run, train, run.settings.seed)
    microbatch = min(run.settings.microbatch, len(train))
    picked = _spread(len(train), MOST_BATCHES * microbatch)
    took = Took()
    until = time.perf_counter() + READ_SECONDS
    took.read(rows, picked[-1])
    if time.perf_counter() < until:
        took = Took()  # the first row opened files and imported decoders
    items: list[Any] = []
    for index in picked:
        late = time.perf_counter() >= until
        if not late:
            items += took.read(rows, index)
        if len(items) == microbatch or (late and items):
            took.collate(rows, items, whole=len(items) == microbatch)
            items = []
        if late:
            break
    return took.told(microbatch)


def _spread(count: int, wanted: int) -> list[int]:
    """Row numbers over the whole of a dataset: neighbours may be alike."""
    return [count * place // min(count, wanted) for place in range(min(count, wanted))]


class Took:
    """What reading took so far."""

    def __init__(self) -> None:
        self.reads: list[tuple[float, float]] = []  # of each row: all of it, fetching
        self.batches: list[tuple[float, float, int]] = []  # a row's share: collate, handing over, bytes

    def read(self, rows: Rows, index: int) -> list[Any]:
        """One row, as what ``collate`` takes."""
        take_fetch_seconds()
        started = time.perf_counter()
        items = rows.items((0, (index,)))
        self.reads.append((time.perf_counter() - started, take_fetch_seconds()))
        return items

    def collate(self, rows: Rows, items: list[Any], *, whole: bool) -> None:
        """Collate and hand over; a batch that is not whole need not be possible."""
        started = time.perf_counter()
        with contextlib.nullcontext() if whole else contextlib.suppress(Exception):
            batch = rows.trainer.collate(rows.run, items)
            collated = time.perf_counter() - started
            size = _size(batch)
            started = time.perf_counter()
            if size < shared_memory() // 2:
                ForkingPickler.dumps(batch)  # moves its tensors into shared memory, as a worker does
            handed = time.perf_counter() - started
            self.batches.append((collated / len(items), handed / len(items), size // len(items)))

    def told(self, microbatch: int) -> Reading:
        """What a row takes, by batches of so many.

        The median of whole batches is told: rows differ, and a neighbour may have had the processor in one.
        """
        firsts = range(0, max(1, len(self.reads) - microbatch + 1), microbatch)
        batches = [self.reads[first : first + microbatch] for first in firsts]
        means = [(fmean(whole for whole, _ in each), fmean(part for _, part in each)) for each in batches]
        item, fetch = sorted(means)[len(means) // 2]
        # The first batch imports and starts things too; what is least is what every batch takes.
        collate = min((each for each, _, _ in self.batches), default=0.0)
        handed = min((each for _, each, _ in self.batches), default=0.0)
        size = max((each for _, _, each in self.batches), default=0)
        return Reading(
            rows=len(self.reads), item_seconds=item, fetch_seconds=fetch,
            collate_seconds=collate, copy_seconds=handed, row_bytes=size, worker_bytes=private_memory(),
        )  # fmt: skip


def _size(batch: Batch) -> int:
    """Bytes that handing it over moves: whole storages, of which a tensor may be a part."""
    storages = [each.untyped_storage() for each in batch.tensors.values()]
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())
