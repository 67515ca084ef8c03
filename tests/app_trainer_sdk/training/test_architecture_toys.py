"""Four kinds of trainers on the contract, each as small as it can be: read one before you write your own.

Text, latent diffusion with an adapter, a head on frozen features, and splats that add and remove parameters
while they train. Each trains through the real driver, is stopped and resumed, and exports what it replays.
"""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional
from torch_helpers import same_tensors, train

from app_trainer_sdk import (
    Artifact,
    Batch,
    Examination,
    LossTerms,
    ModelRow,
    Modules,
    Phase,
    Snapshot,
    StepInfo,
    SupervisedTrainer,
    Trainer,
)

# 1. Text: prompts and completions laid end to end, trained on completions only.


class LanguageModel(nn.Module):
    """Bytes in, a hidden state for each out; the head is applied to the trained positions only."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 12)
        self.reader = nn.GRU(12, 12, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(12, 32)

    def forward(self, tokens, lengths):
        rows = [self.reader(self.embed(row)[None])[0][0] for row in tokens.split(lengths)]
        return self.dropout(torch.cat(rows))


class Sentences:
    """Made-up pairs (prompt, completion) of tokens."""

    def __init__(self, first, count) -> None:
        self.numbers = range(first, first + count)

    def __len__(self):
        return len(self.numbers)

    def item(self, index, random):
        number = self.numbers[index]
        return [1, number % 7 + 2], [number % 7 + 9, *([20] * (number % 3)), 31]


class ToyText(SupervisedTrainer):
    """A causal language model."""

    name, version, methods = "toy-text", "1", ("full",)
    models = (ModelRow("tiny-gru", "A reader of bytes", parameters=2_000),)
    inputs = {}  # noqa: RUF012
    artifacts = {"full": ("weights",)}  # noqa: RUF012

    def build_model(self, run, *, weights):
        root = LanguageModel()
        return Modules(root, blocks=[root.reader])

    def dataset(self, run, split):
        return {"train": Sentences(0, 14), "validation": Sentences(100, 5), "test": Sentences(200, 4)}[split]

    def collate(self, run, items):
        rows = [prompt + completion for prompt, completion in items]
        trained, start = [], 0
        for (prompt, _), row in zip(items, rows, strict=True):
            trained += range(start + len(prompt), start + len(row))
            start += len(row)
        tensors = {
            "tokens": torch.tensor([token for row in rows for token in row]),
            "at": torch.tensor(trained),
        }
        return Batch(tensors, units=len(trained), host={"lengths": [len(row) for row in rows]})

    def loss(self, modules, batch, random):
        tokens, at = batch.tensors["tokens"], batch.tensors["at"]
        hidden = modules.root(tokens, batch.host["lengths"])
        logits = modules.root.head(hidden[at - 1])
        right = (logits.argmax(-1) == tokens[at]).sum()
        total = functional.cross_entropy(logits, tokens[at], reduction="sum")
        return LossTerms(total, metrics={"accuracy": (right, len(at))})

    def largest_batch(self, run, rows):
        return self.collate(run, [([1, 2], [9, 20, 20, 31])] * rows)

    def export(self, run, saved, directory):
        weights = saved.section("model")
        return written(directory, weights, [[1, 3], [1, 5]], lambda control: text_answer(weights, control))

    def replay(self, run, directory, controls):
        weights = load_file(directory / "weights.safetensors")
        return [text_answer(weights, control) for control in controls]


def text_answer(weights, prompt):
    model = LanguageModel().eval()
    model.load_state_dict(weights)
    with torch.no_grad():
        hidden = model(torch.tensor(prompt), [len(prompt)])
        return int(model.head(hidden[-1]).argmax())


# 2. Latent diffusion, LoRA: the VAE and the text encoder each live for one phase and leave a file.


class Denoiser(nn.Module):
    """A frozen layer with a rank-2 adapter; the names with ``adapter`` are what trains."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4 + 3 + 1, 4).requires_grad_(False)
        self.adapter_a = nn.Parameter(torch.randn(2, 8) * 0.1)
        self.adapter_b = nn.Parameter(torch.zeros(4, 2))

    def forward(self, noisy, caption, time):
        x = torch.cat([noisy, caption, time[:, None]], dim=-1)
        return self.base(x) + x @ self.adapter_a.T @ self.adapter_b.T


class Encoded:
    """What the two phases left: a latent and a caption for each picture."""

    def __init__(self, run, rows) -> None:
        self.latents = load_file(run.store["latents"] / "latents.safetensors")["latents"][rows]
        self.captions = load_file(run.store["captions"] / "captions.safetensors")["captions"][rows]

    def __len__(self):
        return len(self.latents)

    def item(self, index, random):
        latent = self.latents[index]
        return (latent.flip(0) if random.python.random() < 0.5 else latent), self.captions[index]


class ToyDiffusion(SupervisedTrainer):
    """An adapter that learns to remove noise from latents."""

    name, version, methods = "toy-diffusion", "1", ("lora",)
    models = (ModelRow("tiny-latent", "A denoiser", parameters=36),)
    inputs = {}  # noqa: RUF012
    preparation = ("latents", "captions")
    artifacts = {"lora": ("weights",)}  # noqa: RUF012

    def examine(self, run):
        return Examination(rows=16, fingerprint="pictures-1")

    def phases(self, run):
        return [
            Phase("latents", encode_pictures, key={"data": "pictures-1", "vae": "v1"}),
            Phase("captions", encode_captions, key={"data": "pictures-1", "encoder": "t1"}),
        ]

    def build_model(self, run, *, weights):
        return Modules(Denoiser())

    def dataset(self, run, split):
        return Encoded(run, {"train": slice(0, 16), "validation": slice(16, 20), "test": slice(20, 20)}[split])

    def collate(self, run, items):
        latents, captions = zip(*items, strict=True)
        return Batch({"latents": torch.stack(latents), "captions": torch.stack(captions)}, units=len(items))

    def loss(self, modules, batch, random):
        latents = batch.tensors["latents"]
        draw = random.torch(latents.device)
        noise = torch.randn(latents.shape, generator=draw, device=latents.device)
        time = torch.rand(len(latents), generator=draw, device=latents.device)
        noisy = latents * (1 - time[:, None]) + noise * time[:, None]
        return LossTerms((modules.root(noisy, batch.tensors["captions"], time) - noise).pow(2).mean(-1).sum())

    def largest_batch(self, run, rows):
        return Batch({"latents": torch.zeros(rows, 4), "captions": torch.zeros(rows, 3)}, units=rows)

    def export(self, run, saved, directory):
        weights = saved.section("model")
        return written(directory, weights, [0.1, 0.9], lambda control: adapter_answer(weights, control))

    def replay(self, run, directory, controls):
        weights = load_file(directory / "weights.safetensors")
        return [adapter_answer(weights, control) for control in controls]


def encode_pictures(run, directory):
    """The VAE exists in here only; its latents leave as a file."""
    vae = nn.Linear(6, 4)
    pictures = torch.randn(20, 6, generator=run.random("pictures").torch())
    with torch.no_grad():
        latents = torch.cat([vae(picture[None]) for picture in run.track(pictures, "encoding pictures")])
    save_file({"latents": latents}, directory / "latents.safetensors")
    return {"rows": len(latents), "scale": float(latents.std())}


def encode_captions(run, directory):
    """The same for the text encoder; a later phase may read an earlier one's facts and files."""
    encoder = nn.Embedding(5, 3)
    with torch.no_grad():
        captions = encoder(torch.arange(run.facts["latents"]["rows"]) % 5)
    save_file({"captions": captions}, directory / "captions.safetensors")
    return {"rows": len(captions)}


def adapter_answer(weights, control):
    return (torch.full((8,), control) @ weights["adapter_a"].T @ weights["adapter_b"].T).tolist()


# 3. A frozen backbone, run once over all pictures, then a head on what it saw.


class Features:
    """Features and labels of a split."""

    def __init__(self, run, split) -> None:
        tensors = load_file(run.store["features"] / f"{split}.safetensors")
        self.features, self.labels = tensors["features"], tensors["labels"]

    def __len__(self):
        return len(self.labels)

    def item(self, index, random):
        return self.features[index], self.labels[index]


class ToyHead(SupervisedTrainer):
    """A linear head on features."""

    name, version, methods = "toy-head", "1", ("head",)
    models = (ModelRow("tiny-backbone", "A backbone", parameters=64),)
    inputs = {}  # noqa: RUF012
    preparation = ("features",)
    artifacts = {"head": ("weights",)}  # noqa: RUF012

    def examine(self, run):
        return Examination(rows=21, fingerprint="digits-1")

    def phases(self, run):
        return [Phase("features", extract_features, key={"data": "digits-1", "backbone": "b1"})]

    def build_model(self, run, *, weights):
        return Modules(nn.Linear(8, 3))

    def dataset(self, run, split):
        return Features(run, split)

    def collate(self, run, items):
        features, labels = zip(*items, strict=True)
        return Batch({"features": torch.stack(features), "labels": torch.stack(labels)}, units=len(items))

    def loss(self, modules, batch, random):
        logits = modules.root(batch.tensors["features"])
        right = (logits.argmax(-1) == batch.tensors["labels"]).sum()
        total = functional.cross_entropy(logits, batch.tensors["labels"], reduction="sum")
        return LossTerms(total, metrics={"accuracy": (right, len(logits))})

    def largest_batch(self, run, rows):
        tensors = {"features": torch.zeros(rows, 8), "labels": torch.zeros(rows, dtype=torch.int64)}
        return Batch(tensors, units=rows)

    def export(self, run, saved, directory):
        weights = saved.section("model")
        return written(directory, weights, [0.1, 0.9], lambda control: head_answer(weights, control))

    def replay(self, run, directory, controls):
        weights = load_file(directory / "weights.safetensors")
        return [head_answer(weights, control) for control in controls]


def extract_features(run, directory):
    """The backbone is frozen, sees every picture once and is gone when this returns."""
    backbone = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()).eval()
    counts = {"train": 21, "validation": 6, "test": 5}
    for split, count in counts.items():
        pictures = torch.randn(count, 8, generator=run.random("pictures", split).torch())
        with torch.no_grad():
            tensors = {"features": backbone(pictures), "labels": pictures[:, :3].argmax(-1)}
        save_file(tensors, directory / f"{split}.safetensors")
    return {"rows": counts}


def head_answer(weights, control):
    return (weights["weight"] @ torch.full((8,), control) + weights["bias"]).tolist()


# 4. Splats: a loop of its own, since splitting and pruning replace parameters and their optimizer's state.


class Scene:
    """The state of a splat training: splats, the optimizer over them, and the number of updates made."""

    def __init__(self, splats, step=0) -> None:
        self.splats = {name: nn.Parameter(tensor.clone()) for name, tensor in splats.items()}
        self.optimizer = torch.optim.Adam(self.splats.values(), lr=0.05)
        self.step = step

    def render(self):
        x = torch.linspace(0, 1, 32)
        return sum(
            height * torch.exp(-((x - at) ** 2) / 0.005)
            for at, height in zip(self.splats["at"], self.splats["height"], strict=True)
        )

    def replaced(self, rows):
        """A scene of these rows (a row may stand twice), each with the moments it had."""
        scene = Scene({name: each.detach()[rows] for name, each in self.splats.items()}, self.step)
        for name, each in self.splats.items():
            state = {
                key: value if key == "step" else value[rows]
                for key, value in self.optimizer.state[each].items()
            }
            scene.optimizer.state[scene.splats[name]] = state
        return scene


class ToySplats(Trainer):
    """A line of light, made of Gaussians that split where they are strong and go where they are weak."""

    name, version, methods = "toy-splats", "1", ("splat",)
    models = (ModelRow("from-nothing", "No base model", parameters=0),)
    inputs = {}  # noqa: RUF012
    artifacts = {"splat": ("weights",)}  # noqa: RUF012

    def begin(self, run, saved):
        if saved is None:
            draw = run.random("splats").torch()
            splats = {name: torch.rand(3, generator=draw) for name in ("at", "height")}
            return [Scene(splats)]
        scene = Scene(saved.section("model"), step=int(saved.values["step"]))
        moments = saved.section("optimizer")
        for name, each in scene.splats.items():
            keys = ("step", "exp_avg", "exp_avg_sq")
            if f"{name}/step" in moments:
                scene.optimizer.state[each] = {key: moments[f"{name}/{key}"].clone() for key in keys}
        return [scene]

    def training_steps(self, run, state):
        target = torch.sin(torch.linspace(0, 9, 32)).abs()
        while state[0].step < run.settings.updates:
            scene = state[0]
            noise = torch.randn(32, generator=run.random("view", scene.step).torch()) * 0.01
            loss = (scene.render() - target - noise).pow(2).sum()
            scene.optimizer.zero_grad()
            loss.backward()
            scene.optimizer.step()
            scene.step += 1
            if scene.step % 3 == 0:
                heights = scene.splats["height"].detach()
                strong = int(heights.argmax())
                state[0] = scene.replaced([*torch.nonzero(heights > 0.2).flatten().tolist(), strong])
            metrics = {"splats": (float(len(scene.splats["at"])), 1.0)}
            yield StepInfo(step=scene.step, loss=loss.detach(), learning_rate=0.05, metrics=metrics)

    def snapshot(self, state):
        scene = state[0]
        tensors = {f"model/{name}": each.detach() for name, each in scene.splats.items()}
        for name, each in scene.splats.items():
            for key, value in scene.optimizer.state[each].items():
                tensors[f"optimizer/{name}/{key}"] = value
        return Snapshot(tensors, {"step": scene.step})

    def evaluate(self, run, state, split):
        if split == "validation":
            with torch.no_grad():
                error = (state[0].render() - torch.sin(torch.linspace(0, 9, 32)).abs()).pow(2)
            yield LossTerms(error.sum(), metrics={"loss": (error.sum(), len(error))})

    def export(self, run, saved, directory):
        weights = saved.section("model")
        return written(directory, weights, [0.2, 0.8], lambda control: splat_answer(weights, control))

    def replay(self, run, directory, controls):
        weights = load_file(directory / "weights.safetensors")
        return [splat_answer(weights, control) for control in controls]


def splat_answer(weights, control):
    return float((weights["height"] * torch.exp(-((control - weights["at"]) ** 2) / 0.005)).sum())


def written(directory, weights, controls, answer):
    """One folder with one file, and the answers expected of it."""
    folder = directory / "weights"
    folder.mkdir()
    save_file(weights, folder / "weights.safetensors")
    return Artifact("weights", controls=controls, expected=[answer(control) for control in controls])


SUPERVISED = {
    "microbatch": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": 0.01,
    "evaluate_every": 3,
    "checkpoint_every": 4,
}
TOYS = {
    ToyText: {"epochs": 2, **SUPERVISED},
    ToyDiffusion: {"epochs": 2, **SUPERVISED},
    ToyHead: {"epochs": 2, **SUPERVISED},
    ToySplats: {"updates": 11, "evaluate_every": 3, "checkpoint_every": 4},
}
by_toy = pytest.mark.parametrize(
    ("toy", "settings"), TOYS.items(), ids=lambda value: value.name if isinstance(value, type) else ""
)


@by_toy
def test_stopped_and_resumed(tmp_path, toy, settings):
    """Each kind of trainer, stopped in the middle of an epoch and again later, ends bit for bit as if not."""
    whole = train(toy, tmp_path / "whole", **settings)
    starts = [train(toy, tmp_path / "cut", stop_at=check, **settings) for check in (6, 9)]
    resumed = train(toy, tmp_path / "cut", **settings)

    assert [each.stopped for each in starts] == [True, True]
    assert len(resumed.metrics()) == whole.plan.updates
    assert resumed.metrics() == whole.metrics()
    assert resumed.evaluations() == whole.evaluations()
    assert whole.evaluations()
    for section in ("model", "optimizer"):
        assert same_tensors(resumed.snapshot().section(section), whole.snapshot().section(section))
        assert whole.snapshot().section(section)


@by_toy
def test_it_learns(tmp_path, toy, settings):
    """The loss on held-out data falls."""
    evaluations = train(toy, tmp_path, **settings).evaluations()
    losses = [line["loss"] for line in evaluations if line["split"] == "validation"]

    assert losses[-1] < losses[0]


@by_toy
def test_exported_and_replayed(tmp_path, toy, settings):
    """From a checkpoint and without the training's state, the artifact answers as it did before export."""
    training = train(toy, tmp_path, **settings)
    (tmp_path / "artifacts").mkdir()
    artifact = training.trainer.export(training.run, training.snapshot(), tmp_path / "artifacts")
    folder = tmp_path / "artifacts" / artifact.name

    assert training.trainer.replay(training.run, folder, artifact.controls) == list(artifact.expected)


def test_phases_are_made_once(tmp_path):
    """The second start finds both encoders' files and skips them; no number moves."""
    first = train(ToyDiffusion, tmp_path / "1", cache=tmp_path / "cache", **TOYS[ToyDiffusion])
    second = train(ToyDiffusion, tmp_path / "2", cache=tmp_path / "cache", **TOYS[ToyDiffusion])

    assert [row.reused for row in first.rows] == [False, False]
    assert [row.reused for row in second.rows] == [True, True]
    assert first.metrics() == second.metrics()


def test_splats_come_and_go(tmp_path):
    """Densification changes the number of parameters, and the moments follow their rows."""
    training = train(ToySplats, tmp_path, **TOYS[ToySplats])
    counts = [line["splats"] for line in training.metrics()]
    tensors = training.snapshot().tensors

    assert len(set(counts)) > 1
    assert tensors["optimizer/at/exp_avg"].shape == tensors["model/at"].shape
