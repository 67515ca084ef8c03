"""How long training waits for a checkpoint: ours, accelerate's ``save_state`` and ``torch.save``, all fsynced.

The state is that of a full fine-tune of SmolLM2-135M in fp32 with AdamW: 134.5 M parameters and two moments,
made without weights. "Stall" is what the training thread loses: for ours copying the state and handing it
over, with the writing done behind; for the others the whole call. The yardstick is one plain copy of the
state. Prints medians of alternating rounds and ratios.

Run: ``python benchmarks/checkpoint_stall.py [ROUNDS] [SCALE]`` (SCALE 0.1 for a quick look).
"""

from __future__ import annotations

import functools
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

from app_trainer_sdk.training.checkpoint import CheckpointStore, copied
from app_trainer_sdk.training.saver import Saver
from app_trainer_sdk.values import Snapshot

WIDTH, FEED_FORWARD, VOCABULARY, LAYERS = 576, 1536, 49152, 30


def network(scale: float) -> nn.Module:
    """Layers of the shapes of SmolLM2-135M."""
    layers = [nn.Embedding(int(VOCABULARY * scale), WIDTH)]
    for _ in range(LAYERS):
        layers += [nn.Linear(WIDTH, FEED_FORWARD, bias=False) for _ in range(3)]
        layers += [nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH // 3 + WIDTH, bias=False)]
    return nn.ModuleList(layers)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    model = network(float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    snapshot = _snapshot(model, optimizer)
    size = sum(each.numel() * each.element_size() for each in snapshot.tensors.values())
    folder = Path(tempfile.mkdtemp(dir=os.environ.get("TMPDIR", "/tmp")))
    times: dict[str, list[float]] = {name: [] for name in ("copy", "ours", "written", "accelerate", "torch")}
    try:
        for number in range(rounds + 1):
            measured = _round(number, folder, model, optimizer, snapshot)
            if number:  # the first round warms up
                for name, seconds in measured.items():
                    times[name].append(seconds)
    finally:
        shutil.rmtree(folder)
    _report(times, size)


def _round(number, folder, model, optimizer, snapshot) -> dict[str, float]:
    measured = {}
    measured["copy"] = _timed(lambda: copied(snapshot))
    saver, store = Saver(), CheckpointStore(folder / "ours", "bench")
    started = time.perf_counter()
    saver.start(functools.partial(store.save, number, copied(snapshot), {}))
    measured["ours"] = time.perf_counter() - started
    saver.finish()
    measured["written"] = time.perf_counter() - started
    store.retain(1)
    accelerator = Accelerator(cpu=True, project_dir=str(folder))
    prepared = accelerator.prepare(model, optimizer)
    measured["accelerate"] = _timed(lambda: _accelerate(accelerator, folder / "accelerate"))
    del prepared
    measured["torch"] = _timed(lambda: _torch(model, optimizer, folder / "torch.pt"))
    return measured


def _snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> Snapshot:
    names = {parameter: name for name, parameter in model.named_parameters()}
    tensors = {f"model/{name}": parameter.detach() for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        tensors |= {f"optimizer/{names[parameter]}/{key}": value for key, value in state.items()}
    return Snapshot(tensors)


def _accelerate(accelerator: Accelerator, folder: Path) -> None:
    accelerator.save_state(str(folder))
    for path in folder.rglob("*"):
        if path.is_file():
            _sync(path)


def _torch(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> None:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    _sync(path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _timed(work) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _report(times: dict[str, list[float]], size: int) -> None:
    median = {name: statistics.median(values) for name, values in times.items()}
    print(f"state of {size / 2**20:,.0f} MiB, medians of {len(times['copy'])} rounds")
    print(f"one copy of the state             {median['copy']:7.3f} s")
    print(
        f"ours: training waits              {median['ours']:7.3f} s (written after {median['written']:.3f} s)"
    )
    print(f"accelerate save_state + fsync     {median['accelerate']:7.3f} s")
    print(f"torch.save + fsync                {median['torch']:7.3f} s")
    stall = statistics.median(a / b for a, b in zip(times["ours"], times["copy"], strict=True))
    print(f"stall / copy                      {stall:7.3f}   (target at most 1.3)")
    for name in ("accelerate", "torch"):
        ratio = statistics.median(a / b for a, b in zip(times[name], times["ours"], strict=True))
        print(f"{name} / ours                 {ratio:7.2f}")


if __name__ == "__main__":
    main()
