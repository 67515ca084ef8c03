"""What the phase ledger costs at a phase's boundaries, with a million live Python objects.

``python benchmarks/ledger_overhead.py [objects]`` prints seconds for the beginning and the end of a phase that
keeps nothing, for the end of one that keeps a module (which names its holder), and what nested scopes cost.
"""

import statistics
import sys
import time

import torch
from torch import nn

from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.memory import CpuProbe

ROUNDS = 7
TARGET_SECONDS = 0.2
KEPT = {}


class Entry:
    """One of a million: an object with an attribute and a list."""

    def __init__(self, number):
        self.number = number
        self.parts = [number]


def work():
    """A little of what a phase does."""
    nn.Linear(512, 512)(torch.ones(8, 512))


def boundaries(book, work):
    """Seconds of a phase's two boundaries."""
    started = time.perf_counter()
    scope = book.phase("work")
    scope.__enter__()
    inside = time.perf_counter()
    work()
    done = time.perf_counter()
    scope.__exit__(None, None, None)
    return inside - started, time.perf_counter() - done


def median(book, work):
    """Medians over rounds; what a round kept is dropped between them."""
    rounds = []
    for _ in range(ROUNDS):
        rounds.append(boundaries(book, work))
        KEPT.clear()
    return tuple(statistics.median(each) for each in zip(*rounds, strict=True))


def main():
    """Print the table."""
    objects = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    live = [Entry(number) for number in range(objects // 2)]
    rows = []
    book = Ledger(CpuProbe(), rows.append, policy="report")
    first = boundaries(book, work)  # collects everything; those that follow at once need not
    tidy = median(book, work)
    verdict = rows[-1].verdict
    with book.phase("around"):
        nested = median(book, work)
    kept = median(book, lambda: KEPT.update(encoder=nn.Linear(512, 512)))
    print(
        f"{len(live) * 2:,} live objects; seconds at the beginning and the end of a phase; aim {TARGET_SECONDS}"
    )
    print(f"  first             {first[0]:.3f}  {first[1]:.3f}")
    print(f"  keeps nothing     {tidy[0]:.3f}  {tidy[1]:.3f}  {verdict} (medians of {ROUNDS}, as below)")
    print(f"  nested            {nested[0]:.3f}  {nested[1]:.3f}")
    print(f"  keeps a module    {kept[0]:.3f}  {kept[1]:.3f}  {rows[-1].verdict}")


if __name__ == "__main__":
    main()
