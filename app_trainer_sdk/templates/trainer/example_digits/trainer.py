"""Owns the trainer ``example-digits``: a small head that learns to read noisy 8×8 digits made on the spot.

Torch is imported inside the methods only, so that ``app-trainer describe`` stays fast and needs no GPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, final

from app_trainer_sdk import (
    JSON,
    Artifact,
    Batch,
    Dataset,
    Hyperparameters,
    Input,
    LossTerms,
    ModelRow,
    Modules,
    Run,
    Snapshot,
    SupervisedTrainer,
    setting,
)


class ExampleDigitsHyperparameters(Hyperparameters):
    """The settings every trainer has, and two more."""

    rows: int = setting(1_000, "Training rows to make.", unit="rows", ge=10, le=1_000_000)
    noise: float = setting(0.5, "Standard deviation of the noise on each pixel.", ge=0, le=10)


@final
class ExampleDigitsTrainer(SupervisedTrainer):
    """What is particular to this trainer; the SDK does the rest."""

    name = "example-digits"
    version = "1"
    methods = ("head",)
    models = (ModelRow("small-head", "A head of one hidden layer", parameters=2_410),)
    hyperparameters_class = ExampleDigitsHyperparameters
    inputs: ClassVar[Mapping[str, Input]] = {}  # such as {"dataset": Input("JSONL of ...")}
    artifacts: ClassVar[Mapping[str, Sequence[str]]] = {"head": ("weights",)}

    def build_model(self, run: Run, *, weights: bool) -> Modules:
        """The module to train."""
        from . import digits

        return Modules(digits.head())

    def dataset(self, run: Run, split: str) -> Dataset:
        """The rows of a split; none where there is no such split."""
        from . import digits

        rows = {"train": run.settings.rows, "validation": 200}
        return digits.NoisyDigits(rows.get(split, 0), run.settings.noise)

    def collate(self, run: Run, items: Sequence[Any]) -> Batch:
        """Rows as tensors; a unit is what the loss is divided by, here a row."""
        import torch

        pixels, labels = zip(*items, strict=True)
        return Batch({"pixels": torch.stack(pixels), "labels": torch.tensor(labels)}, units=len(items))

    def loss(self, modules: Modules, batch: Batch, random: Any) -> LossTerms:
        """The sum over the rows, never their mean. Noise, where a loss needs some, comes from ``random``."""
        from torch.nn.functional import cross_entropy

        scores = modules.root(batch.tensors["pixels"])
        return LossTerms(cross_entropy(scores, batch.tensors["labels"], reduction="sum"))

    def measure(self, modules: Modules, batch: Batch, random: Any) -> LossTerms:
        """What evaluation reports besides the loss: the share of rows read right."""
        right = modules.root(batch.tensors["pixels"]).argmax(1) == batch.tensors["labels"]
        loss = self.loss(modules, batch, random)
        return LossTerms(loss.sum, metrics={"accuracy": (right.sum(), len(right))})

    def largest_batch(self, run: Run, rows: int) -> Batch:
        """The heaviest rows there can be, for planning; here all have one size."""
        import torch

        return self.collate(run, [(torch.zeros(64), 0)] * rows)

    def export(self, run: Run, saved: Snapshot, directory: Path) -> Artifact:
        """Weights and class names, from the checkpoint ``saved`` alone."""
        from safetensors.torch import save_file

        from . import digits

        folder = directory / "weights"
        folder.mkdir()
        save_file(saved.section("model"), folder / "head.safetensors")
        (folder / "classes.json").write_text(json.dumps([str(digit) for digit in range(10)]))
        controls: list[JSON] = [digits.clean(digit).tolist() for digit in range(10)]
        return Artifact("weights", controls=controls, expected=digits.read(folder, controls))

    def replay(self, run: Run, directory: Path, controls: Sequence[JSON]) -> Sequence[JSON]:
        """Load the artifact as its user would; the SDK asks in a new process and compares."""
        from . import digits

        return digits.read(directory, controls)
