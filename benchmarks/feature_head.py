"""The feature_head image: peak memory beside a script that keeps its backbone; a second job beside the first.

Memory: MiniLM, 192 texts, a head with a wide hidden layer (training it is the larger part), 3 AdamW updates.
Each side runs in a process of its own: the whole job of ours (phases, training, export), each of its two parts
alone, and a plain torch script over the same backbone, rows and head that extracts, trains and never lets its
backbone go. Counted are the bytes that torch's CPU allocator had handed out at once (the profiler's memory
events): what ``max_memory_allocated`` would tell on a card. So a checkpoint's copy of the state, which lies in
host memory on a card, is left out on both sides. Told beside it is the peak of resident memory, in runs without
the profiler.

Time: ``app-trainer run`` on a folder of pictures with an empty cache, then another job on the same
pictures. Timed by the job's own events are

1. what comes before training: from the start of ``prepare`` to the start of ``train``. That is converting
   weights and extracting; in the second job finding what is stored, and reading it once to check it;
2. from the start of ``prepare`` to the first update, with the evaluation that comes before it;
3. from the start of the command to the first update: the interpreter, imports and the pictures' index besides.

    python benchmarks/feature_head.py --pictures 600 --pairs 2
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # The checkout itself: the benchmark needs no installation.
DICTIONARY = ROOT / "trainer_images/text/examples/devils_dictionary.jsonl"
TEXTS, BATCH, HIDDEN, UPDATES, SEED = 192, 32, 32_768, 3, 42
MIB = 1 << 20
TARGETS = {"memory": 1.05, "second": 20.0}


def main() -> None:
    """Measure both and print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", type=int, default=600, help="pictures of the timed jobs")
    parser.add_argument("--pairs", type=int, default=2, help="first and second jobs to time")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measured(options)))
        return
    with tempfile.TemporaryDirectory() as directory:
        report_memory(Path(directory) / "memory")
        report_time(Path(directory) / "time", options)


def report_memory(folder: Path) -> None:
    folder.mkdir()
    allocated = {side: in_process(side, folder, profile=True) for side in SIDES}
    resident = {side: in_process(side, folder, profile=False) for side in SIDES}
    for side in SIDES:
        print(f"{side:9} {allocated[side]:6.0f} MiB allocated at the peak, {resident[side]:6.0f} MiB resident")
    for name, peaks in (("allocated", allocated), ("resident", resident)):
        larger = max(peaks["extract"], peaks["train"])
        print(
            f"{name}: whole job {peaks['job'] / larger:.3f} x the larger of its parts; "
            f"the script that keeps its backbone {peaks['naive'] / larger:.3f} x, "
            f"{peaks['naive'] / peaks['job']:.2f} x ours"
        )
    print(f"target: whole job at most {TARGETS['memory']} x the larger part, by allocated bytes", flush=True)


def report_time(folder: Path, options: argparse.Namespace) -> None:
    folder.mkdir()
    draw_pictures(folder / "pictures", options.pictures)
    ratios: dict[str, list[float]] = {}
    for pair in range(options.pairs):
        first, second = (timed(folder, pair, name) for name in ("first", "second"))
        for what in first:
            ratios.setdefault(what, []).append(first[what] / second[what])
            print(
                f"pair {pair + 1} {what:24} first {first[what]:7.2f} s, second {second[what]:6.2f} s",
                flush=True,
            )
    for what, values in ratios.items():
        print(f"median {what:24} {statistics.median(values):6.1f} x faster the second time")
    print(f"target: prepare to first update at least {TARGETS['second']} x")


def timed(folder: Path, pair: int, name: str) -> dict[str, float]:
    """Seconds of one job by its own events; jobs of a pair share a cache, which the first one finds empty."""
    directory, job = folder / f"{name}-{pair}", folder / "job.json"
    job.write_text(json.dumps({
        "trainer": "trainer_images.feature_head.trainer:FeatureHeadTrainer", "model": "resnet50-thin",
        "inputs": {"dataset": "pictures"}, "hyperparameters": {"updates": 2, "control_rows": 1},
    }))  # fmt: skip
    command = [sys.executable, "-m", "app_trainer_sdk.run", "--job", job, "--job-dir", directory, "--quiet"]
    cache = {"APP_TRAINER_CACHE_DIR": str(folder / f"cache-{pair}")}
    started = time.time()
    subprocess.run([*map(str, command)], env=environment() | cache, check=True)
    lines = (directory / "attempts/1/events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]

    def when(wanted: Any) -> float:
        event = next(event for event in events if wanted(event))
        return datetime.fromisoformat(event["time"]).timestamp()

    def begin(phase: str) -> float:
        return when(lambda event: event.get("phase", {}).get("name") == phase)

    prepare, train = begin("prepare"), begin("train")
    update = when(lambda event: event["type"] == "job.progress" and event["phase"]["name"] == "train")
    return {
        "before training": train - prepare,
        "prepare to first update": update - prepare,
        "command to first update": update - started,
    }


def draw_pictures(folder: Path, count: int) -> None:
    """Class folders of noisy 128-pixel pictures, no two alike."""
    import numpy
    from PIL import Image

    random = numpy.random.default_rng(SEED)
    for number in range(count):
        place = folder / f"class-{number % 3}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 160, (128, 128, 3), dtype=numpy.uint8)
        pixels[:, :, number % 3] += 90
        Image.fromarray(pixels).save(place / f"{number:05}.jpg")


def in_process(side: str, folder: Path, *, profile: bool) -> float:
    """Peak MiB of one side: allocated under the profiler, else resident."""
    command = [
        sys.executable,
        __file__,
        "--side",
        side,
        "--folder",
        folder,
        *(["--profile"] if profile else []),
    ]
    done = subprocess.run([str(each) for each in command], env=environment(), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{side} failed:\n{done.stderr[-4000:]}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def environment() -> dict[str, str]:
    return {
        "OMP_WAIT_POLICY": "PASSIVE", **os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "0",
    }  # fmt: skip


def measured(options: argparse.Namespace) -> float:
    """Do one side from an empty process and tell its peak in MiB."""
    from torch.profiler import ProfilerActivity, profile

    run = make_run(options.folder, options.side)
    if not options.profile:
        SIDES[options.side](run)
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        SIDES[options.side](run)
    now = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak / MIB


def make_run(folder: Path, side: str) -> Any:
    """The run of the job as the SDK resolves it. Only ``train`` finds features that another process stored."""
    import importlib.util

    import torch

    from app_trainer_sdk.data_facts import DataFacts
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.plan import DeviceFacts
    from app_trainer_sdk.planning.resolve import resolve_plan
    from trainer_images.feature_head.models import MODELS
    from trainer_images.feature_head.trainer import FeatureHeadTrainer

    dataset = folder / "rows.jsonl"
    rows = [json.loads(line) for line in DICTIONARY.read_text(encoding="utf-8").splitlines()[:TEXTS]]
    dataset.write_text("".join(
        json.dumps({"text": row["completion"], "label": row["prompt"][-1]}) + "\n" for row in rows
    ))  # fmt: skip
    asked = {
        "updates": UPDATES, "global_batch": BATCH, "microbatch": BATCH, "hidden_width": HIDDEN, "seed": SEED,
        "extraction_batch": BATCH, "control_rows": 2, "validation_share": 0.0, "test_share": 0.0,
        "max_length": 64,
    }  # fmt: skip
    settings = FeatureHeadTrainer.hyperparameters_class.read(asked)
    device = DeviceFacts("cpu", "cpu", bf16=False, cores=os.cpu_count() or 1)
    plan = resolve_plan(
        settings, trainer="feature_head", trainer_version="1", model=MODELS[0].name, method="head",
        data=DataFacts(rows=TEXTS), device=device,
    )  # fmt: skip
    source = MODELS[0].weights["base"]
    spec = importlib.util.find_spec(source.package.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"install {source.package}: make bench does")
    cache = folder / ("stored" if side in ("extract", "train") else f"cache-{side}-{os.getpid()}")
    return Run(
        settings=plan.resolved(settings), model=MODELS[0], method="head", directory=folder, cache=cache,
        weights={"base": Path(spec.submodule_search_locations[0]) / source.file}, inputs={"dataset": dataset},
        device=torch.device("cpu"), dtype=torch.float32,
    )  # fmt: skip


def extract(run: Any) -> None:
    """Phase 1: what is stored stays for the side ``train``."""
    from app_trainer_sdk.files import remove_tree
    from app_trainer_sdk.training.ledger import Ledger
    from app_trainer_sdk.training.memory import probe_for
    from app_trainer_sdk.training.phases import run_phases
    from trainer_images.feature_head.trainer import FeatureHeadTrainer

    remove_tree(run.cache)
    run_phases(FeatureHeadTrainer(), run, Ledger(probe_for(run.device), lambda row: None))


def train(run: Any) -> None:
    """Phase 2, and the export, when the features are there."""
    from safetensors.torch import load_file, save_file

    from app_trainer_sdk.training.ledger import Ledger
    from app_trainer_sdk.training.memory import probe_for
    from app_trainer_sdk.training.phases import run_phases
    from app_trainer_sdk.values import Snapshot
    from trainer_images.feature_head.trainer import FeatureHeadTrainer

    trainer = FeatureHeadTrainer()
    run_phases(trainer, run, Ledger(probe_for(run.device), lambda row: None))
    state = trainer.begin(run, None)
    for _ in trainer.training_steps(run, state):
        pass
    model = {name: each for name, each in trainer.snapshot(state).tensors.items() if name.startswith("model/")}
    save_file(model, run.directory / f"{os.getpid()}.safetensors")
    del state, model
    saved = Snapshot(load_file(run.directory / f"{os.getpid()}.safetensors"))
    trainer.export(run, saved, Path(tempfile.mkdtemp(dir=run.directory)))


def job(run: Any) -> None:
    """The whole job in one process."""
    extract(run)
    train(run)


def naive(run: Any) -> None:
    """What one writes in an afternoon: the same backbone, rows, head and optimizer, all of it kept."""
    import torch
    from torch.nn.functional import cross_entropy

    from trainer_images.feature_head.backbone import load_extractor
    from trainer_images.feature_head.head import Head, head_sizes
    from trainer_images.feature_head.splits import class_names, read_splits

    splits, _ = read_splits(run)
    rows, names = splits["train"], class_names(splits)
    extractor = load_extractor(run)
    texts = [row.content for row in rows]
    features = torch.cat([extractor(texts[at : at + BATCH])[0] for at in range(0, len(texts), BATCH)]).clone()
    labels = torch.tensor([names.index(row.label) for row in rows])
    head = Head(**head_sizes(run))
    optimizer = torch.optim.AdamW(head.parameters(), fused=True)
    for update in range(UPDATES):
        part = slice(update * BATCH, (update + 1) * BATCH)
        optimizer.zero_grad()
        cross_entropy(head(features[part]), labels[part]).backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimizer.step()
    torch.save(head.state_dict(), run.directory / "naive.pt")
    head.eval()(extractor(texts[:1])[0])


SIDES = {"extract": extract, "train": train, "job": job, "naive": naive}

if __name__ == "__main__":
    main()
