"""What `dataloader_workers: auto` is worth: updates a second with it, and with 0, 1, 2 and 4 workers.

    python benchmarks/data_workers.py [pictures | video | arrays] [ROUNDS]

Pictures are JPEG files of 640 x 480 made here, decoded and scaled to 224 with Pillow; video frames are decoded
from an H.264 clip with PyAV (`pip install av`; without it from an animated WebP with Pillow, and that is said).
Arrays lie in memory and need no decoding: they show what workers cost. Every case runs the SDK's own loop, and
they take turns, training on one thread. Medians are over rounds; the least shows what a busy machine hides.
`auto` is what a run decides: measured and chosen once before the rounds; how long that took is told.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import resource
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy
import torch
from PIL import Image
from torch import nn

from app_trainer_sdk import Artifact, Batch, LossTerms, Modules, SupervisedTrainer, fetching
from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.handle import Run
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.planning.resolve import resolve_plan
from app_trainer_sdk.planning.workers import Demand, choose_workers
from app_trainer_sdk.training.device import device_facts, pick_device, synchronize
from app_trainer_sdk.training.reading_time import measure_reading

SIDE, MICROBATCH, WARM, FIXED = 224, 4, 2, (0, 1, 2, 4)
UPDATES = {"pictures": 6, "video": 6, "arrays": 30}


class Pictures:
    """JPEG files, decoded, flipped by the row's randomness and scaled."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.glob("*.jpg"))

    def __len__(self):
        return len(self.paths)

    def item(self, index, random):
        with fetching():
            data = self.paths[index].read_bytes()
        picture = Image.open(io.BytesIO(data)).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        if random.python.random() < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return numpy.asarray(picture)


class Frames:
    """Frames of clips: a row is a moment, found from the key frame before it and decoded up to it."""

    def __init__(self, folder: Path, count: int) -> None:
        self.paths, self.count = sorted(folder.glob("clip*")), count

    def __len__(self):
        return len(self.paths) * self.count

    def item(self, index, random):
        path, number = self.paths[index // self.count], index % self.count
        if path.suffix == ".webp":
            with Image.open(path) as clip:
                clip.seek(number)
                return numpy.asarray(clip.convert("RGB").resize((SIDE, SIDE)))
        import av

        with av.open(str(path)) as clip:
            stream = clip.streams.video[0]
            stream.thread_count = 1
            wanted = round(number / stream.average_rate / stream.time_base)
            clip.seek(wanted, stream=stream)
            for frame in clip.decode(stream):
                if frame.pts >= wanted:
                    break
            return frame.reformat(SIDE, SIDE, "rgb24").to_ndarray()


class Arrays:
    """Pictures that lie in memory."""

    def __init__(self) -> None:
        self.values = numpy.random.default_rng(0).integers(0, 256, (256, 64, 64, 3), dtype=numpy.uint8)

    def __len__(self):
        return len(self.values)

    def item(self, index, random):
        return self.values[index]


class Seer(SupervisedTrainer):
    """A small convolutional network that learns each picture's brightness."""

    name, version, methods = "seer", "1", ("full",)
    artifacts = {"full": ("weights",)}  # noqa: RUF012
    models = (ModelRow("seer", "Three convolutions", parameters=1),)
    data = None

    def build_model(self, run, *, weights):
        layers = [
            nn.Conv2d(3, 16, 7, 4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2),
        ]
        return Modules(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 1)))

    def dataset(self, run, split):
        return self.data

    def collate(self, run, items):
        pictures = torch.from_numpy(numpy.stack(items)).permute(0, 3, 1, 2).contiguous()
        return Batch({"pictures": pictures}, units=len(items))

    def loss(self, modules, batch, random):
        pictures = batch.tensors["pictures"].float() / 255
        error = modules.root(pictures)[:, 0] - pictures.mean((1, 2, 3))
        return LossTerms((error * error).sum())

    def largest_batch(self, run, rows):
        return self.collate(run, [numpy.zeros((SIDE, SIDE, 3), numpy.uint8)] * rows)

    def export(self, run, saved, directory):
        return Artifact("weights")

    def replay(self, run, directory, controls):
        return []


def make_pictures(folder: Path, count: int = 48) -> str:
    random = numpy.random.default_rng(0)
    for number in range(count):
        small = random.integers(0, 256, (48, 64, 3), dtype=numpy.uint8)
        Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC).save(
            folder / f"{number:03}.jpg", quality=90
        )
    return f"{count} JPEG files of 640 x 480"


def make_clips(folder: Path, count: int, clips: int = 4) -> str:
    random = numpy.random.default_rng(0)
    stills = [
        Image.fromarray(random.integers(0, 256, (9, 16, 3), dtype=numpy.uint8)).resize((320, 180))
        for _ in range(clips)
    ]
    try:
        import av
    except ImportError:
        for number, still in enumerate(stills):
            frames = [still.rotate(step) for step in range(count)]
            frames[0].save(folder / f"clip{number}.webp", save_all=True, append_images=frames[1:], duration=40)
        return (
            f"{clips} animated WebP of {count} frames, 320 x 180, decoded with Pillow (PyAV is not installed)"
        )
    for number, still in enumerate(stills):
        with av.open(str(folder / f"clip{number}.mp4"), "w") as clip:
            stream = clip.add_stream("libx264", rate=25, options={"g": "12"})
            stream.width, stream.height, stream.pix_fmt = 320, 180, "yuv420p"
            for step in range(count):
                for packet in stream.encode(av.VideoFrame.from_image(still.rotate(step))):
                    clip.mux(packet)
            for packet in stream.encode():
                clip.mux(packet)
    return f"{clips} H.264 clips of {count} frames, 320 x 180, a key frame every 12, PyAV {av.__version__}"


def prepared(kind: str, folder: Path):
    if kind == "pictures":
        told = make_pictures(folder)
        return Pictures(folder), told
    if kind == "video":
        told = make_clips(folder, 48)
        return Frames(folder, 48), told
    return Arrays(), "256 arrays of 64 x 64 in memory"


def handle(folder: Path, rows: int) -> tuple[Run, object]:
    device = pick_device()
    settings = Hyperparameters(updates=10_000, global_batch=MICROBATCH, microbatch=MICROBATCH, evaluate_every=0)
    plan = resolve_plan(
        settings, trainer="seer", trainer_version="1", model="seer", method="full", data=DataFacts(rows=rows),
        device=device_facts(device),
    )  # fmt: skip
    torch.set_num_threads(1)  # two that wait for each other measure the neighbours of a busy machine
    run = Run(
        settings=plan.resolved(settings), model=Seer.models[0], method="full", directory=folder, cache=folder,
        device=device, dtype=torch.float32,
    )  # fmt: skip
    return run, plan


def used() -> float:
    """Processor seconds of this process and of children that ended."""
    mine, theirs = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return mine.ru_utime + mine.ru_stime + theirs.ru_utime + theirs.ru_stime


def one(run: Run, workers: int, updates: int) -> tuple[float, float, float]:
    """Wall and processor seconds of an update, and the share that waits; the first ones warm up."""
    trainer = Seer()
    run = dataclasses.replace(run, settings=run.settings.model_copy(update={"dataloader_workers": workers}))
    state = trainer.begin(run, None)
    before = used()
    steps = trainer.training_steps(run, state)
    for _ in range(WARM):
        next(steps)
    synchronize(run.device)
    started, waited = time.perf_counter(), 0.0
    for _ in range(updates):
        waited += next(steps).data_seconds
    synchronize(run.device)
    wall = time.perf_counter() - started
    steps.close()  # workers end, and their processor time is known
    return wall / updates, (used() - before) / (updates + WARM), waited / wall


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", nargs="?", default="pictures", choices=[*UPDATES])
    parser.add_argument("rounds", nargs="?", type=int, default=5)
    asked = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more than processors is what is tried
    with tempfile.TemporaryDirectory() as name:
        Seer.data, told = prepared(asked.kind, Path(name))
        run, plan = handle(Path(name), len(Seer.data))
        facts = device_facts(run.device)
        print(
            f"{told}; {MICROBATCH} rows, {plan.device}, {facts.cores} cores, load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
        started = time.perf_counter()
        reading = measure_reading(Seer(), run)
        took = time.perf_counter() - started
        demand = Demand(MICROBATCH, MICROBATCH)
        auto, why = choose_workers(
            DataFacts(rows=len(Seer.data)), facts, cores=facts.cores, reading=reading, demand=demand
        )
        print(f"auto: {auto}, decided in {took:.2f} s: {why}")
        cases = {f"{count}": count for count in FIXED} | {"auto": auto}
        times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in cases}
        for number in range(asked.rounds):
            names = list(cases)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                times[name].append(one(run, cases[name], UPDATES[asked.kind]))
    if auto in FIXED:  # the same work under two names: together they are known better
        times[f"{auto}+auto"] = [*times[f"{auto}"], *times["auto"]]
    show(times, asked.rounds)


def show(times: dict[str, list[tuple[float, float, float]]], rounds: int) -> None:
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in times.items()
    }
    least = {name: min(wall for wall, _, _ in rows) for name, rows in times.items()}
    best = min(medians[str(count)][0] for count in FIXED)
    fastest = min(least[str(count)] for count in FIXED)
    print(f"{rounds} rounds    ms/update  of best     least  of best    cpu ms   waits")
    for name, (wall, processor, waits) in medians.items():
        told = f"{name:<10}{wall * 1e3:11.1f}{wall / best:9.2f}{least[name] * 1e3:10.1f}"
        print(f"{told}{least[name] / fastest:9.2f}{processor * 1e3:10.1f}{waits:8.0%}")


if __name__ == "__main__":
    sys.exit(main())
