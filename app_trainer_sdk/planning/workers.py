"""Owns how many processes read: from what reading was measured to take, and what the machine has room for.

Pure arithmetic with a reason for each answer. This file must not know how anything was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from app_trainer_sdk.data_facts import LEAST_SHARED_BYTES, DataFacts
from app_trainer_sdk.plan import DeviceFacts
from app_trainer_sdk.quantities import MIB
from app_trainer_sdk.values import JSON

#: Processes when nothing says how many are needed; more rarely read faster, and each holds memory of its own.
MOST_WORKERS = 4
#: And when an update's time is known to need them.
MOST_NEEDED = 16
#: Batches that each worker reads ahead, as the loader is told.
READ_AHEAD = 2
#: Declared: what a batch's way through a pipe costs beside copying it into shared memory.
PIPE_SECONDS = 0.0005
#: A worker has to spare the training process more than so many times what taking a batch from it costs.
WORTH = 3.0
#: Reading below this share of what an update computes is not worth a process.
LEAST_SHARE = 0.02
#: Readers are planned for so much more than the mean: rows differ, and nobody should wait for the slow ones.
SPARE = 1.5
#: Of what is free, for this; the rest is for others, and for what training itself takes.
ROOM = 0.5
#: A process that does nothing yet holds so much of its own.
WORKER_BYTES = 64 * MIB


@dataclass(frozen=True)
class Reading:
    """What reading the training split takes on one processor, per row, as measured in a process of its own.

    Attributes:
        rows: rows that were read for it.
        item_seconds: of ``item``, ``fetch_seconds`` of them fetching as the dataset says.
        collate_seconds: of ``collate``.
        copy_seconds: of copying its tensors into shared memory, as handing it over does.
        row_bytes: its tensors.
        worker_bytes: what the process held of its own afterwards.
        problem: why nothing was measured; then all else is 0.
        forks: whether a process of its own can read at all.
    """

    rows: int = 0
    item_seconds: float = 0.0
    fetch_seconds: float = 0.0
    collate_seconds: float = 0.0
    copy_seconds: float = 0.0
    row_bytes: int = 0
    worker_bytes: int = 0
    problem: str = ""
    forks: bool = True

    def document(self) -> dict[str, JSON]:
        """As the plan keeps it."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """What a plan kept."""
        return cls(**document)


@dataclass(frozen=True)
class Demand:
    """What one rank reads: rows of a microbatch and of its share of an update.

    ``compute_seconds`` is what an update takes without waiting for data, ``source`` says who measured it.
    """

    microbatch: int
    rows: int
    compute_seconds: float | None = None
    source: str = ""


def choose_workers(
    data: DataFacts, device: DeviceFacts, *, cores: int, ranks: int = 1, reading: Reading | None = None,
    demand: Demand | None = None,
) -> tuple[int, str]:  # fmt: skip
    """What ``dataloader_workers`` becomes when nobody asks, and why.

    Args:
        data: what is known of it.
        device: what this machine has.
        cores: processors of one rank.
        ranks: how many ranks share the machine's memory.
        reading: what reading was measured to take; None before it was.
        demand: what a rank reads; needed with ``reading``.
    """
    if data.stream:
        return 0, "a stream is read in order, by the training process"
    if data.prepared and reading is None:
        return 0, "measured once the phases have made what is read"
    if reading is None or demand is None or reading.problem:
        why = "" if reading is None or not reading.problem else f"reading is not measured: {reading.problem}; "
        if reading is not None and not reading.forks:
            return 0, f"{why}so the training process reads"
        workers, reason = _unmeasured(device, cores)
        return workers, why + reason
    return _measured(device, cores, ranks, reading, demand)


def _unmeasured(device: DeviceFacts, cores: int) -> tuple[int, str]:
    if device.kind == "cpu":
        return 0, "the processors train: reading beside them gains nothing while it is light"
    if device.shared_memory_bytes < LEAST_SHARED_BYTES:
        found = f"{device.shared_memory_bytes // MIB} MiB of shared memory"
        return 0, f"{found}, too little for workers to hand batches over"
    workers = min(MOST_WORKERS, cores - 1)
    if workers < 1:
        return 0, "one processor for each rank, which the training process needs"
    return workers, f"the device computes while {workers} of the rank's {cores} usable processors read"


def _measured(device: DeviceFacts, cores: int, ranks: int, reading: Reading, demand: Demand) -> tuple[int, str]:
    read = (reading.item_seconds + reading.collate_seconds) * demand.microbatch
    taken = PIPE_SECONDS + reading.copy_seconds * demand.microbatch
    told = (
        f"reading a microbatch takes {_time(read)} on one processor, handing it over {_time(taken)} "
        f"({reading.rows} rows measured here)"
    )
    if read <= WORTH * taken:
        return 0, f"{told}: light, so the training process reads"
    update = read * demand.rows / demand.microbatch
    computed = demand.compute_seconds
    if computed is not None:
        told += f"; an update computes {_time(computed)} ({demand.source})"
        if update <= LEAST_SHARE * computed:
            return 0, f"{told}: reading is below {LEAST_SHARE:.0%} of it"
    workers, limit = min(_limits(device, cores, ranks, reading, demand, update), key=lambda each: each[0])
    return max(0, workers), f"{told}; {limit}"


def _limits(
    device: DeviceFacts, cores: int, ranks: int, reading: Reading, demand: Demand, update: float
) -> Iterator[tuple[int, str]]:
    """The most processes by each of what limits them, with the sentence if that is the least."""
    if demand.compute_seconds:
        needed = min(MOST_NEEDED, math.ceil(SPARE * update / demand.compute_seconds))
        yield needed, f"{needed} {'keeps' if needed == 1 else 'keep'} up with it"
    else:
        yield MOST_WORKERS, f"{MOST_WORKERS} read ahead, while nobody knows how long an update takes"
    # Also those that train: readers that are ahead wait, and while an update waits for rows nobody else works.
    yield cores if cores > 1 else 0, f"the rank has {_processors(cores)}, which train and read"
    batch = max(1, reading.row_bytes * demand.microbatch)
    room = int(device.shared_memory_bytes * ROOM) // ranks
    windows = 2 * math.ceil(demand.rows / demand.microbatch)  # the one that trains, and the one after it
    fits = (room // batch - windows) // READ_AHEAD
    yield fits, f"{room // MIB:,} MiB of shared memory hold batches of {batch / MIB:.3g} MiB for {max(0, fits)}"
    if device.host_memory_bytes:
        each = max(WORKER_BYTES, reading.worker_bytes)
        left = int(device.host_memory_bytes * ROOM) // ranks
        yield left // each, f"{left // MIB:,} MiB of memory hold {left // each} of {each // MIB:,} MiB"


def _processors(count: int) -> str:
    return f"{count} usable processor" + ("" if count == 1 else "s")


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
