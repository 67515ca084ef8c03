"""Owns what the plan knows of the data, and what may be asked of data of that kind.

Rows can be had in any order; a stream only in its own. Plain values: this file imports neither torch nor numpy
and must not know how anything is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app_trainer_sdk.errors import BadData, BadJob, Problem
from app_trainer_sdk.hyperparameters import Hyperparameters

#: Where no batch was measured. Containers begin with 64 MiB; a worker that finds no room dies of a bus error.
LEAST_SHARED_BYTES = 1 << 30

#: How a stream goes on after a stop, as the plan tells it.
STREAMS = {
    "exact": "the stream says where it was, and goes on from there",
    "by replay": "the stream is read again from the beginning of the pass, which takes longer the later it is",
    "not exact": "the stream cannot go on where it was: a resume begins a new pass, and the result says so",
}


@dataclass(frozen=True)
class DataFacts:
    """What is known of the data before training, and what the trainer asks of a batch.

    Attributes:
        rows: training rows, or None when the work is not counted in rows.
        fingerprint: digest of the data.
        minimum_rows: least rows of a microbatch.
        coupled_rows: whether rows see each other, so that a batch is never split.
        group_sizes: rows of each group, where they are known.
        stream: how the training data resumes when it is a stream; empty when it has rows.
        prepared: whether phases make what is read, so that nothing is known of it before.
    """

    rows: int | None
    fingerprint: str = ""
    minimum_rows: int = 1
    coupled_rows: bool = False
    group_sizes: Sequence[int] = ()
    stream: str = ""
    prepared: bool = False


def choose_sampling(data: DataFacts) -> tuple[str, str]:
    """What ``sampling`` becomes when nobody asks, and why."""
    if data.stream:
        return "sequential", "a stream has an order of its own"
    return "shuffled", "every row once an epoch, each time in another order"


def cores_of_a_rank(cores: int, why: str, ranks: int) -> tuple[int, str]:
    """Processors of one rank, at least 1, and why."""
    shared = f", shared by {ranks} ranks" if ranks > 1 else ""
    return max(1, cores // ranks), f"{why}{shared}".removeprefix(", ")


def refuse_impossible_order(settings: Hyperparameters, data: DataFacts, replicas: int) -> None:
    """Raise :class:`BadJob` where the settings ask of a stream what only rows can do."""
    if not data.stream:
        return
    why = "the training data is a stream"
    problems = [
        Problem(f"/hyperparameters/{name}", repr(asked), expected, why)
        for name, asked, possible, expected in (
            ("sampling", settings.sampling, ("auto", "sequential"), "'auto'"),
            ("batching", settings.batching, ("mixed",), "'mixed'"),
            ("dataloader_workers", settings.dataloader_workers, ("auto", 0), "'auto' or 0"),
        )
        if asked not in possible
    ]
    if data.stream == "not exact" and replicas > 1:
        problems.append(
            Problem("--ranks", str(replicas), "1", "such a stream need not be the same on each rank")
        )
    if problems:
        raise BadJob("a stream can only be read in its own order:", problems=problems)


def groups_of_batches(settings: Hyperparameters, trainer: str, data: DataFacts) -> Sequence[int]:
    """Rows of each group when batches have rows of one group only; else nothing.

    Raises:
        BadJob: the groups are not known.
        BadData: a group is too small to train on.
    """
    if settings.batching != "by_group":
        return ()
    if not data.group_sizes or sum(data.group_sizes) != data.rows:
        found = f"'by_group', and the trainer {trainer} tells groups of {list(data.group_sizes)[:8]} rows "
        wrong = Problem("/hyperparameters/batching", found + f"for {data.rows} rows", "another batching")
        raise BadJob("the updates of an epoch cannot be counted:", problems=[wrong])
    if min(data.group_sizes) < data.minimum_rows:
        raise BadData(
            f"a group of the training split has {min(data.group_sizes)} rows",
            expected=f"at least {data.minimum_rows}, the fewest rows this trainer can train on at once",
            setting="/hyperparameters/batching or the dataset",
        )  # fmt: skip
    return data.group_sizes
