"""What one more small exchange between ranks costs an update: the reason why a shortage of memory has none.

Two ranks train under gloo in blocks of updates, in turn as they are and with one exchange more before each.
Prints the median ratio of neighbouring blocks, for a small and for a larger network. On a busy machine the
exchange waits for the slower rank's turn on a processor, so look at it on an idle one.

Run: ``python benchmarks/rank_exchange.py [PAIRS] [UPDATES]``.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.multiprocessing
from torch import nn

from app_trainer_sdk import Artifact, Batch, LossTerms, ModelRow, Modules, Run, SupervisedTrainer
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training import meeting, supervised
from app_trainer_sdk.training.team import Team

RANKS, BATCH, ROWS = 2, 64, 4096
WIDTHS = (64, 1024)


class Wide(SupervisedTrainer):
    name = "wide"
    version = "1"
    methods = ("full",)
    models = tuple(ModelRow(str(width), "Three layers", parameters=3 * width * width) for width in WIDTHS)
    artifacts = {"full": ("weights",)}  # noqa: RUF012

    def build_model(self, run, *, weights):
        width = int(run.model.name)
        return Modules(nn.Sequential(*[nn.Linear(width, width) for _ in range(3)]))

    def dataset(self, run, split):
        return range_rows(ROWS)

    def collate(self, run, items):
        return Batch({"x": torch.ones(len(items), int(run.model.name))}, units=len(items))

    def loss(self, modules, batch, random):
        return LossTerms(modules.root(batch.tensors["x"]).square().sum())

    def largest_batch(self, run, rows):
        return self.collate(run, [0] * rows)

    def export(self, run, saved, directory):
        return Artifact("weights")

    def replay(self, run, directory, controls):
        return []


class range_rows:  # noqa: N801 - a dataset of row numbers
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def item(self, index, random):
        return index


def train(rank: int, folder: str, width: int, pairs: int, updates: int) -> None:
    """One rank; rank 0 prints."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/meeting-{width}", RANKS)
    meeting.enter(team := Team(rank, RANKS, store=store))
    team.connect(torch.device("cpu"), lambda: None)
    settings = Hyperparameters(updates=10**5, global_batch=BATCH, microbatch=BATCH // RANKS)
    settings = settings.model_copy(update={
        "epochs": 1, "gradient_accumulation_steps": 1, "warmup_updates": 0, "dataloader_workers": 0,
        "optim_8bit": False, "gradient_checkpointing": False, "torch_compile": False, "mixed_precision": "no",
    })  # fmt: skip
    row = next(each for each in Wide.models if each.name == str(width))
    run = Run(
        settings=settings, model=row, method="full", directory=Path(folder), cache=Path(folder),
        device=torch.device("cpu"), dtype=torch.float32, check=lambda: None,
    )  # fmt: skip
    trainer = Wide()
    steps = supervised.training_steps(trainer, run, supervised.begin(trainer, run, None))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(20):
        next(steps)
    for block in range(2 * pairs):
        more = bool((block + block // 2) % 2)  # in turn which comes first
        started = time.perf_counter()
        for _ in range(updates):
            if more:
                team.anywhere([False])
            next(steps)
        seconds[more].append((time.perf_counter() - started) / updates)
    if rank == 0:
        ratio = statistics.median(a / b for a, b in zip(seconds[True], seconds[False], strict=True))
        plain, more = (1e6 * statistics.median(seconds[each]) for each in (False, True))
        print(f"{width:5} wide: {plain:9.1f} µs/update, {more:9.1f} with one exchange more, ratio {ratio:.3f}")


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    updates = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    for width in WIDTHS:
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(train, (folder, width, pairs, updates), RANKS)


if __name__ == "__main__":
    main()
