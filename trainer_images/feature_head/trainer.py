"""Owns the table of contents of the ``feature_head`` image: what it offers, and which file does each part.

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
from trainer_images.feature_head.hyperparameters import FeatureHeadHyperparameters
from trainer_images.feature_head.models import MODELS

if TYPE_CHECKING:
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.training.randomness import Random


@final
class FeatureHeadTrainer(SupervisedTrainer):
    """A classification head on the features of a frozen backbone, which are computed once and stored."""

    name: ClassVar[str] = "feature_head"
    version: ClassVar[str] = "1"
    models: ClassVar[Sequence[ModelRow]] = MODELS
    methods: ClassVar[Sequence[str]] = ("head",)
    hyperparameters_class: ClassVar[type[Hyperparameters]] = FeatureHeadHyperparameters
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "head": {"learning_rate": 1e-3, "weight_decay": 0.01},
    }
    inputs: ClassVar[Mapping[str, Input]] = {
        "dataset": Input(
            "Texts: JSONL of text and label. Pictures: a folder of class folders, or one of train, "
            "validation and test with such."
        ),
        "validation": Input(
            "The same to evaluate on; without it the dataset's own, or a share.", required=False
        ),
        "test": Input("The same to show at the end; without it the dataset's own, or a share.", required=False),
    }
    artifacts: ClassVar[Mapping[str, Sequence[str]]] = {"head": ("head",)}
    preparation: ClassVar[Sequence[str]] = ("weights", "features")
    requirements: ClassVar[Requirements] = Requirements(host_memory_gib=2.0, disk_gib=1.0)

    def examine(self, run: Run) -> Examination:
        """Read the rows, split them and map the classes."""
        from trainer_images.feature_head import examination

        return examination.examine(run)

    def phases(self, run: Run) -> Sequence[Phase]:
        """Convert the weights when they are an ONNX file; extract every feature once."""
        from trainer_images.feature_head import features, weights

        return [*weights.phases(run), *features.phases(run)]

    def phase_shapes(self, run: Run) -> Mapping[str, PhaseShapes | None]:
        """The frozen backbone over its largest batch; converting weights leaves the device alone."""
        from trainer_images.feature_head import backbone

        return {"weights": None, "features": backbone.shapes(run)}

    def build_model(self, run: Run, *, weights: bool) -> Modules:
        """The head alone."""
        from trainer_images.feature_head import head

        return head.build_model(run, weights=weights)

    def dataset(self, run: Run, split: str) -> Dataset:
        """Stored features and classes of one split."""
        from trainer_images.feature_head import features

        return features.read_features(run, split)

    def collate(self, run: Run, items: Sequence[Any]) -> Batch:
        """Features and classes; a unit is a row."""
        from trainer_images.feature_head import head

        return head.collate(items)

    def loss(self, modules: Modules, batch: Batch, random: Random) -> LossTerms:
        """Cross entropy over the classes, summed."""
        from trainer_images.feature_head import head

        return head.head_loss(modules, batch)

    def measure(self, modules: Modules, batch: Batch, random: Random) -> LossTerms:
        """The loss, and how often the likeliest class was the right one."""
        from trainer_images.feature_head import head

        return head.head_loss_and_accuracy(modules, batch)

    def largest_batch(self, run: Run, rows: int) -> Batch:
        """Rows of features; all are equally heavy."""
        from trainer_images.feature_head import head

        return head.largest_batch(run, rows)

    def export(self, run: Run, saved: Snapshot, directory: Path) -> Artifact:
        """Write the head, its class names and the identity of its backbone."""
        from trainer_images.feature_head import export

        return export.export(run, saved, directory)

    def replay(self, run: Run, directory: Path, controls: Sequence[JSON]) -> Sequence[JSON]:
        """Load backbone and head as a user would and classify the control rows."""
        from trainer_images.feature_head import export

        return export.replay(run, directory, controls)
