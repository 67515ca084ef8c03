"""Owns the head that trains: features in, a score for each class out; its batches and its loss.

It must not know backbones or files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import Batch, LossTerms, Modules
from trainer_images.feature_head.features import FeatureRow
from trainer_images.feature_head.splits import class_names, read_splits

#: The class of a row without features: no loss, no gradient.
NONE = -100
#: Classes of a plan without data: more than most have, so that what fits the plan fits the job.
PLANNED_CLASSES = 1000


class Head(nn.Module):
    """Features (rows, features), each row brought to mean 0 and variance 1, to scores (rows, classes).

    Args:
        features: how many numbers describe a row.
        classes: how many classes there are.
        hidden_width: width of the hidden layer; 0 leaves it out.
        dropout: on what the first layer reads.
    """

    def __init__(self, features: int, classes: int, *, hidden_width: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = features
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(features, hidden_width) if hidden_width else None
        self.output = nn.Linear(hidden_width or features, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Scores before softmax."""
        inner = self.dropout(functional.layer_norm(features, (self.features,)))
        if self.hidden is not None:
            inner = functional.gelu(self.hidden(inner))
        return self.output(inner)


def build_model(run: Run, *, weights: bool) -> Modules:
    """The head, its new weights drawn from torch's generator. The backbone is not here and never loaded.

    Args:
        run: the job.
        weights: False for a plan, which may be made without data: it counts on ``PLANNED_CLASSES`` then.
    """
    if not weights and not run.inputs:
        return Modules(Head(**_sizes(run, PLANNED_CLASSES)))
    return Modules(Head(**head_sizes(run)))


def head_sizes(run: Run) -> dict[str, Any]:
    """What makes a head: enough to build it again."""
    return _sizes(run, len(class_names(read_splits(run)[0])))


def collate(items: Sequence[FeatureRow]) -> Batch:
    """``features`` (rows, width) and ``labels`` (rows,); a unit is a row that has features."""
    labels = [row.label if row.usable else NONE for row in items]
    tensors = {"features": torch.stack([row.features for row in items]), "labels": torch.tensor(labels)}
    return Batch(tensors, units=sum(row.usable for row in items))


def largest_batch(run: Run, rows: int) -> Batch:
    """Any batch of ``rows`` rows: all are equally heavy."""
    return collate([FeatureRow(torch.zeros(run.model.architecture["features"]), 0, True)] * rows)


def head_loss(modules: Modules, batch: Batch) -> LossTerms:
    """Cross entropy in nats, summed over the rows that have features."""
    return LossTerms(_cross_entropy(modules.root(batch.tensors["features"]), batch))


def head_loss_and_accuracy(modules: Modules, batch: Batch) -> LossTerms:
    """The same loss, and the metric ``accuracy``: how often the highest score was the right class."""
    scores = modules.root(batch.tensors["features"])
    right = (scores.argmax(-1) == batch.tensors["labels"]).sum()
    return LossTerms(_cross_entropy(scores, batch), metrics={"accuracy": (right, batch.units)})


def _sizes(run: Run, classes: int) -> dict[str, Any]:
    return {
        "features": run.model.architecture["features"],
        "classes": classes,
        "hidden_width": run.settings.hidden_width,
        "dropout": run.settings.dropout,
    }


def _cross_entropy(scores: Tensor, batch: Batch) -> Tensor:
    labels = batch.tensors["labels"]
    return functional.cross_entropy(scores.float(), labels, ignore_index=NONE, reduction="sum")
