"""Owns the table of contents of the ``text`` image: what it offers, and which file does each part.

It must not import torch, transformers or numpy, not even through others: ``describe`` reads this file in a
tenth of a second. Every method imports the sibling that does the work, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from app_trainer_sdk.catalog import ModelRow, Requirements
from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.values import (
    JSON,
    Artifact,
    Batch,
    Dataset,
    Examination,
    Input,
    LossTerms,
    Modules,
    Phase,
    PhaseShapes,
    Snapshot,
)
from trainer_images.text.hyperparameters import TextHyperparameters
from trainer_images.text.models import MODELS

if TYPE_CHECKING:
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.training.randomness import Random


@final
class TextTrainer(SupervisedTrainer):
    """Supervised fine-tuning of a causal language model on prompts and completions."""

    name: ClassVar[str] = "text"
    version: ClassVar[str] = "1"
    models: ClassVar[Sequence[ModelRow]] = MODELS
    methods: ClassVar[Sequence[str]] = ("lora", "full")
    hyperparameters_class: ClassVar[type[Hyperparameters]] = TextHyperparameters
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "lora": {"learning_rate": 2e-4},
        "full": {"learning_rate": 2e-5, "weight_decay": 0.01},
    }
    inputs: ClassVar[Mapping[str, Input]] = {
        "dataset": Input("JSONL of prompt and completion, or of chat messages: a file, or a folder with one."),
        "validation": Input("JSONL to evaluate on; without it a share of the dataset.", required=False),
        "test": Input("JSONL to predict at the end; without it a share of the dataset.", required=False),
    }
    artifacts: ClassVar[Mapping[str, Sequence[str]]] = {
        "lora": ("adapter", "predictions"),
        "full": ("weights", "predictions"),
    }
    preparation: ClassVar[Sequence[str]] = ("weights", "tokens")
    requirements: ClassVar[Requirements] = Requirements(host_memory_gib=4.0, disk_gib=4.0)
    depth_setting: ClassVar[str] = "keep_layers"

    def examine(self, run: Run) -> Examination:
        """Read and split the rows, and check for leaks between splits."""
        from trainer_images.text import examination

        return examination.examine(run)

    def phases(self, run: Run) -> Sequence[Phase]:
        """Convert the weights when they are a GGUF file; turn the rows into tokens."""
        from trainer_images.text import tokens, weights

        return [*weights.phases(run), *tokens.phases(run)]

    def phase_shapes(self, run: Run) -> Mapping[str, PhaseShapes | None]:
        """Both phases leave the device alone."""
        return dict.fromkeys(self.preparation)

    def build_model(self, run: Run, *, weights: bool) -> Modules:
        """The causal language model, with LoRA layers when the method is ``lora``."""
        from trainer_images.text import model

        return model.build_model(run, weights=weights)

    def dataset(self, run: Run, split: str) -> Dataset:
        """The tokenized rows of one split."""
        from trainer_images.text import tokens

        return tokens.read_tokens(run, split)

    def collate(self, run: Run, items: Sequence[Any]) -> Batch:
        """Rows laid end to end; a unit is a trained token."""
        from trainer_images.text import batches

        return batches.collate(items)

    def loss(self, modules: Modules, batch: Batch, random: Random) -> LossTerms:
        """Cross entropy at the trained tokens, summed."""
        from trainer_images.text import loss

        return loss.token_loss(modules, batch)

    def measure(self, modules: Modules, batch: Batch, random: Random) -> LossTerms:
        """The loss, and how often the likeliest token was the right one."""
        from trainer_images.text import loss

        return loss.token_loss_and_accuracy(modules, batch)

    def largest_batch(self, run: Run, rows: int) -> Batch:
        """Rows of ``max_length`` tokens, all trained but the first."""
        from trainer_images.text import batches

        return batches.largest_batch(run, rows)

    def show(self, run: Run, batch: Batch) -> Sequence[JSON]:
        """Each row's text, and the part of it that is trained."""
        from trainer_images.text import batches

        return batches.show(run, batch)

    def export(self, run: Run, saved: Snapshot, directory: Path) -> Artifact:
        """Write the adapter or the weights, and the held-out predictions."""
        from trainer_images.text import export

        return export.export(run, saved, directory)

    def replay(self, run: Run, directory: Path, controls: Sequence[JSON]) -> Sequence[JSON]:
        """Load the artifact as its user would and answer the control prompts."""
        from trainer_images.text import export

        return export.replay(run, directory, controls)
