"""What the SDK's step loop costs beside the same raw PyTorch loop, per update, in one process, in turn.

Both sides train the same 64-wide network on the same in-memory rows: model, loss, backward, clip, fused
AdamW, cosine schedule. The raw side reads with a DataLoader as a script would; the SDK's side has metrics
lines and checkpoint cadence on. Prints medians of paired runs, the difference and the ratio.

Run: ``python benchmarks/loop_overhead.py [PAIRS] [UPDATES]``.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from app_trainer_sdk import Artifact, Batch, LossTerms, ModelRow, Modules, Run, SupervisedTrainer
from app_trainer_sdk.channel import RankChannel, StopToken
from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.plan import DeviceFacts
from app_trainer_sdk.planning.resolve import resolve_plan
from app_trainer_sdk.training.checkpoint import CheckpointStore
from app_trainer_sdk.training.drive import Desk, Drive

WIDTH, ROWS, BATCH = 64, 4096, 32
torch.manual_seed(0)
X, Y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, 1)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
    )


class Rows:
    def __len__(self) -> int:
        return ROWS

    def item(self, index, random):
        return X[index], Y[index]


class Mlp(SupervisedTrainer):
    name = "mlp"
    version = "1"
    methods = ("full",)
    models = (ModelRow("mlp", "64-wide", parameters=8_000),)
    artifacts = {"full": ("weights",)}  # noqa: RUF012

    def build_model(self, run, *, weights):
        return Modules(network())

    def dataset(self, run, split):
        return Rows() if split == "train" else []

    def collate(self, run, items):
        x, y = zip(*items, strict=True)
        return Batch({"x": torch.stack(x), "y": torch.stack(y)}, units=len(items))

    def loss(self, modules, batch, random):
        error = modules.root(batch.tensors["x"]) - batch.tensors["y"]
        return LossTerms((error * error).sum())

    def largest_batch(self, run, rows):
        return Batch({"x": X[:rows], "y": Y[:rows]}, units=rows)

    def export(self, run, saved, directory):
        return Artifact("weights")

    def replay(self, run, directory, controls):
        return []


def raw(updates: int) -> float:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, updates)
    loader = DataLoader(TensorDataset(X, Y), batch_size=BATCH, shuffle=True)
    done = 0
    started = time.perf_counter()
    while done < updates:
        for x, y in loader:
            error = model(x) - y
            loss = (error * error).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)
            done += 1
            if done == updates:
                break
    return (time.perf_counter() - started) / updates


def ours(updates: int) -> float:
    settings = Hyperparameters(updates=updates, global_batch=BATCH, microbatch=BATCH, evaluate_every=0)
    settings = settings.model_copy(update={"checkpoint_every": max(1, updates // 4)})
    plan = resolve_plan(
        settings, trainer="mlp", trainer_version="1", model="mlp", method="full", data=DataFacts(rows=ROWS),
        device=DeviceFacts("cpu", "cpu", bf16=False, cores=torch.get_num_threads()),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        layout = JobDirectory(Path(folder))
        token = StopToken()
        run = Run(
            settings=plan.resolved(settings), model=Mlp.models[0], method="full", directory=layout.root,
            cache=layout.root, device=torch.device("cpu"), dtype=torch.float32, check=token.check,
        )  # fmt: skip
        store = TimedStore(layout.checkpoints, "bench")
        desk = Desk(layout, store, RankChannel(None, token), token, plan, {})
        drive = Drive(Mlp(), run, desk)
        started = time.perf_counter()
        drive.train(None)
        # Saving is real work that a raw loop would have to do as well; what is asked for here is the loop.
        return (time.perf_counter() - started - store.seconds) / updates


class TimedStore(CheckpointStore):
    """A store that tells how long it took."""

    seconds = 0.0

    def save(self, *arguments, **keywords):
        with self._timed():
            return super().save(*arguments, **keywords)

    def retain(self, *arguments, **keywords):
        with self._timed():
            return super().retain(*arguments, **keywords)

    @contextmanager
    def _timed(self):
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    updates = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    torch.set_num_threads(1)
    raw(200), ours(200)
    times = [(raw(updates), ours(updates)) for _ in range(pairs)]
    plain = statistics.median(a for a, _ in times) * 1e6
    sdk = statistics.median(b for _, b in times) * 1e6
    extra = statistics.median((b - a) * 1e6 for a, b in times)
    ratio = statistics.median(b / a for a, b in times)
    print(f"raw loop           {plain:8.1f} µs/update")
    print(f"app_trainer_sdk    {sdk:8.1f} µs/update")
    print(f"difference         {extra:+8.1f} µs/update (median of {pairs} pairs of {updates} updates)")
    print(f"ratio              {ratio:8.3f}")


if __name__ == "__main__":
    sys.exit(main())
