"""What it costs to come to the first window of a resumed run, at position 10 and at position 10,000,000.

From opening the order of examples and its feed, as a rank does after a checkpoint is read, to the first window
with its rows. With a million rows the far position is ten passes on, with twenty million it is in the middle of
the first pass. In pairs in one process, in turns; prints medians and the ratio for each sampling and batching.
The times are the process's own: nothing here waits, and neighbours of a shared machine do not count in them.

Run: ``python benchmarks/resume_position.py [PAIRS]``.
"""

from __future__ import annotations

import statistics
import sys
import time

import numpy

from app_trainer_sdk.testing.toys import ToyTrainer
from app_trainer_sdk.training.feed import Feed, Rows
from app_trainer_sdk.training.order import Order
from app_trainer_sdk.training.row_facts import RowFacts
from app_trainer_sdk.values import Batch

NEAR, FAR, BATCH = 10, 10_000_000, 10
MODES = [
    ("shuffled", "mixed"), ("shuffled", "by_length"), ("shuffled", "by_group"), ("weighted", "mixed"),
    ("sequential", "mixed"),
]  # fmt: skip


class Numbers(Rows):
    """Rows that cost nothing to read; of a batch of them only their number is made."""

    def items(self, request) -> list[int]:
        return list(request[1])


def seconds_to_first_window(position: int, rows: int, mode: tuple[str, str], facts: RowFacts) -> float:
    started = time.process_time()
    sampling, batching = mode
    order = Order(rows, BATCH, seed=42, sampling=sampling, batching=batching, facts=facts)
    trainer = ToyTrainer()
    trainer.collate = lambda run, items: Batch({}, units=len(items))
    feed = Feed(Numbers(trainer, None, range(rows), 42), order, position=position, microbatch=BATCH)
    windows = feed.windows()
    first = next(windows)
    taken = time.process_time() - started
    windows.close()
    assert first.window.position == position
    return taken


def facts_of(rows: int) -> RowFacts:
    numbers = numpy.arange(rows)
    return RowFacts(
        weights=(numbers % 7) / 6, lengths=(numbers % 512).astype(float),
        groups=numbers % 4, names=tuple("abcd"),  # groups of whole batches: each multiple of a batch is an edge
    )  # fmt: skip


def measure(rows: int, mode: tuple[str, str], pairs: int) -> float:
    facts = facts_of(rows) if mode != ("shuffled", "mixed") else RowFacts()
    times = []
    for number in range(pairs):
        turns = (NEAR, FAR) if number % 2 else (FAR, NEAR)
        times.append({position: seconds_to_first_window(position, rows, mode, facts) for position in turns})
    near, far = (statistics.median(each[position] for each in times) * 1e3 for position in (NEAR, FAR))
    ratio = statistics.median(each[FAR] / each[NEAR] for each in times)
    print(
        f"{rows:>12,} rows  {mode[0]:>10} {mode[1]:<10} position {NEAR}: {near:8.1f} ms  {FAR:,}: {far:8.1f} ms"
        f"  ratio {ratio:.3f}"
    )
    return ratio


def main() -> int:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    worst = max(measure(1_000_000, mode, pairs) for mode in MODES)
    worst = max(worst, measure(20_000_000, MODES[0], max(3, pairs // 2)))
    print(f"largest ratio {worst:.3f} (target at most 1.2; {pairs} pairs)")
    return int(worst > 1.2)


if __name__ == "__main__":
    sys.exit(main())
