"""What the phase ledger costs at a phase's boundaries, with a million live Python objects.

``python benchmarks/ledger_overhead.py [objects]`` prints seconds, of the processor and by the clock, for the
beginning and the end of a phase that keeps nothing, of one that keeps a module (which names its holder), and of
nested scopes. The aim is for the processor's: the collector walks through memory on one thread, which work of
others makes up to three times longer by the clock.
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


def now():
    """Seconds of the processor and of the clock."""
    return time.process_time(), time.perf_counter()


def since(before):
    """Seconds of both that have passed."""
    return [after - earlier for after, earlier in zip(now(), before, strict=True)]


def boundaries(book, work):
    """Seconds of a phase's two boundaries, of the processor and by the clock each."""
    before = now()
    scope = book.phase("work")
    scope.__enter__()
    beginning = since(before)
    work()
    before = now()
    scope.__exit__(None, None, None)
    return [*beginning, *since(before)]


def median(book, work):
    """Medians over rounds; what a round kept is dropped between them."""
    rounds = []
    for _ in range(ROUNDS):
        rounds.append(boundaries(book, work))
        KEPT.clear()
    return [statistics.median(each) for each in zip(*rounds, strict=True)]


def tell(name, seconds, more=""):
    """Print a row."""
    print(f"  {name:15} " + "  ".join(f"{each:8.3f}" for each in seconds) + f"  {more}")


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
    print(f"{len(live) * 2:,} live objects; seconds; aim: {TARGET_SECONDS} of the processor for a boundary")
    print("                  begin: processor, clock  end: processor, clock")
    tell("first", first, "collects everything; those that follow at once need not")
    tell("keeps nothing", tidy, f"{verdict} (medians of {ROUNDS}, as below)")
    tell("nested", nested)
    tell("keeps a module", kept, rows[-1].verdict)


if __name__ == "__main__":
    main()
