"""Owns small torch-only trainers that start in about a second: the SDK's own tests and benchmarks use them.

``ToyTrainer`` has what makes resuming hard: dropout, noise in the loss and in the items, rows without units.
This file must not need anything but torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, final

from pydantic import Field

from app_trainer_sdk import (
    JSON,
    Artifact,
    Batch,
    Dataset,
    Examination,
    Hyperparameters,
    Input,
    IterableStream,
    LossTerms,
    ModelRow,
    Modules,
    Run,
    Snapshot,
    StatefulStream,
    Stream,
    SupervisedTrainer,
    setting,
)
from app_trainer_sdk.windows import shuffled

if TYPE_CHECKING:
    from app_trainer_sdk.training.randomness import Random

FEATURES = 8


class ToyHyperparameters(Hyperparameters):
    """Settings of the toy."""

    rows: Annotated[int, Field(ge=0, le=1_000_000)] = setting(40, "Training rows.", unit="rows")
    validation_rows: Annotated[int, Field(ge=0, le=1_000_000)] = setting(10, "Held-out rows.", unit="rows")
    width: Annotated[int, Field(ge=1, le=10_000_000)] = setting(
        FEATURES, "Hidden values; from 512 on 8-bit state is 8-bit.", unit="values"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = setting(0.1, "Share of hidden values dropped.")
    noise: Annotated[float, Field(ge=0)] = setting(0.1, "Noise added to inputs and in the loss.")
    unit_free_share: Annotated[float, Field(ge=0, le=1)] = setting(0.0, "Share of rows that train nothing.")
    sleep_seconds: Annotated[float, Field(ge=0)] = setting(
        0.0, "Time each microbatch takes at least.", unit="s"
    )
    stream: Literal["no", "exact", "by replay", "not exact"] = setting(
        "no", "Whether rows come as a stream, and how it resumes."
    )
    blow_up_at: Annotated[int, Field(ge=-1)] = setting(-1, "Row whose loss is not a number; -1 for none.")


class ToyRows:
    """Noisy samples of one linear map; a pure function of the index and the item's randomness."""

    def __init__(self, count: int, settings: ToyHyperparameters, *, first: int = 0) -> None:
        import torch

        self._count = count
        self._settings = settings
        self._first = first
        self._columns = torch.arange(FEATURES)  # a dataset may hold tensors for as long as training lasts

    def __len__(self) -> int:
        return self._count

    def item(self, index: int, random: Random) -> dict[str, Any]:
        """Row ``index``: features, target and weight."""
        import torch

        number = self._first + index
        base = torch.sin(self._columns * (number + 1) * 0.37)
        noise = torch.randn(FEATURES, generator=random.torch()) * self._settings.noise
        weight = 0.0 if (number % 97) / 97 < self._settings.unit_free_share else 1.0
        if number == self._settings.blow_up_at:
            base = base * float("nan")
        return {"x": base + noise, "y": base.sum() + random.python.random() * self._settings.noise, "w": weight}

    def weights(self) -> list[int]:
        """Every fourth row is never drawn, and of the rest some three times as often as others."""
        return [number % 4 for number in range(self._count)]

    def lengths(self) -> list[int]:
        """Made up, with many of each."""
        return [number * 7 % 13 for number in range(self._count)]

    def groups(self) -> list[str]:
        """Three groups."""
        return ["abc"[number % 3] for number in range(self._count)]


class ToyReader:
    """Row numbers of one pass in random order, and where reading is."""

    def __init__(self, rows: int, epoch: int) -> None:
        self._order = shuffled(rows, seed=0, epoch=epoch)
        self._read = 0

    def __iter__(self) -> Iterator[int]:
        while self._read < len(self._order):
            self._read += 1
            yield self._order[self._read - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"read": self._read}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._read = state_dict["read"]


def toy_stream(settings: ToyHyperparameters) -> Stream:
    """The toy's rows as a stream."""
    rows = ToyRows(settings.rows, settings)

    def source(epoch: int) -> ToyReader:
        return ToyReader(settings.rows, epoch)

    if settings.stream == "exact":
        return StatefulStream(source, item=rows.item)
    return IterableStream(source, item=rows.item, repeatable=settings.stream == "by replay")


@final
class ToyTrainer(SupervisedTrainer):
    """A small network on made-up rows."""

    name = "toy"
    version = "1"
    methods = ("full",)
    models = (ModelRow("toy-mlp", "A small network", parameters=400),)
    hyperparameters_class = ToyHyperparameters
    inputs = {"dataset": Input("Ignored.", required=False)}  # noqa: RUF012
    artifacts = {"full": ("weights",)}  # noqa: RUF012

    def examine(self, run: Run) -> Examination:
        if run.settings.stream != "no":
            return Examination(rows=None, stream=run.settings.stream)
        rows = run.settings.rows
        sizes = [len(range(first, rows, 3)) for first in range(min(3, rows))]
        return Examination(rows=rows, fingerprint=f"toy-{rows}", group_sizes=sizes)

    def build_model(self, run: Run, *, weights: bool) -> Modules:
        from torch import nn

        width, dropout = run.settings.width, nn.Dropout(run.settings.dropout)
        block = nn.Sequential(nn.Linear(FEATURES, width), nn.Tanh(), dropout)
        return Modules(nn.Sequential(block, nn.Linear(width, 1)), blocks=[block])

    def dataset(self, run: Run, split: str) -> Dataset | Stream:
        settings = run.settings
        if split == "train" and settings.stream != "no":
            return toy_stream(settings)
        if split == "train":
            return ToyRows(settings.rows, settings)
        return ToyRows(settings.validation_rows if split == "validation" else 0, settings, first=1_000_000)

    def collate(self, run: Run, items: Sequence[Any]) -> Batch:
        import torch

        tensors = {
            "x": torch.stack([item["x"] for item in items]),
            "y": torch.stack([torch.as_tensor(item["y"]) for item in items]),
            "w": torch.tensor([item["w"] for item in items]),
        }
        return Batch(
            tensors, units=sum(item["w"] for item in items), host={"sleep": run.settings.sleep_seconds}
        )

    def loss(self, modules: Modules, batch: Batch, random: Random) -> LossTerms:
        import time

        import torch

        time.sleep(batch.host["sleep"])
        x = batch.tensors["x"]
        drawn = [torch.randn(FEATURES, generator=random.row(row).torch()) for row in range(len(x))]
        noise = torch.stack(drawn).to(x.device) * 0.01
        error = (modules.root(x + noise).squeeze(-1) - batch.tensors["y"]) ** 2
        return LossTerms((error * batch.tensors["w"]).sum(), metrics={"error": (error.sum(), len(error))})

    def largest_batch(self, run: Run, rows: int) -> Batch:
        import torch

        tensors = {"x": torch.zeros(rows, FEATURES), "y": torch.zeros(rows), "w": torch.ones(rows)}
        return Batch(tensors, units=float(rows), host={"sleep": 0.0})

    def export(self, run: Run, saved: Snapshot, directory: Path) -> Artifact:
        from safetensors.torch import save_file

        folder = directory / "weights"
        folder.mkdir()
        weights = saved.section("model")
        save_file(weights, folder / "model.safetensors")
        controls: list[JSON] = [[0.1] * FEATURES, [0.5] * FEATURES]
        reload = 'from safetensors.torch import load_file\nweights = load_file(f"{folder}/model.safetensors")'
        return Artifact("weights", controls=controls, expected=_answers(weights, controls), reload=reload)

    def replay(self, run: Run, directory: Path, controls: Sequence[JSON]) -> Sequence[JSON]:
        from safetensors.torch import load_file

        return _answers(load_file(directory / "model.safetensors"), controls)


def _answers(weights: dict[str, Any], controls: Sequence[JSON]) -> list[JSON]:
    import torch

    x = torch.tensor(controls)
    hidden = torch.tanh(x @ weights["0.0.weight"].T + weights["0.0.bias"])
    answers: list[JSON] = (hidden @ weights["1.weight"].T + weights["1.bias"]).squeeze(-1).tolist()
    return answers
