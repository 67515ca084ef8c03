"""Owns the models of a few numbers that the tests of the ordinary loop train."""

from __future__ import annotations

import functools
import random

import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_helpers import make_trainer

from app_trainer_sdk import Artifact, LossTerms, ModelRow, Modules, Snapshot, StepInfo, Trainer

PLAIN = {
    "optimizer": "sgd", "beta1": 0.0, "learning_rate": 1.0, "schedule": "constant", "warmup_updates": 0,
    "max_gradient_norm": 0.0, "evaluate_every": 0, "checkpoint_every": 1000,
}  # fmt: skip


class Scalars(nn.Module):
    """Weights and nothing else."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(values))


def weight(training):
    """The weights of the last checkpoint."""
    return training.snapshot().tensors["model/w"].tolist()


class Block(nn.Module):
    """A frozen layer, a low-rank adapter beside it, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, 6) * 0.3)
        self.b = nn.Parameter(torch.zeros(6, 2))
        self.dropout = nn.Dropout(0.25)

    def forward(self, x):
        return torch.tanh(self.base(x) + self.dropout(x) @ self.a.T @ self.b.T)


class Adapted(nn.Module):
    """F4's model: a frozen embedding, two blocks with rank-2 adapters, a head."""

    def __init__(self, *, reentrant: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 6).requires_grad_(False)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(6, 1)
        self.call = (
            functools.partial(checkpoint, use_reentrant=True) if reentrant else lambda block, x: block(x)
        )

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = self.call(block, x)
        return self.head(x).squeeze(-1)


def adapted_trainer(*, reentrant=False, head=True, **attributes):
    def build(run):
        root = Adapted(reentrant=reentrant)
        root.head.requires_grad_(head)
        return Modules(root, blocks=list(root.blocks))

    def loss(modules, values, random):
        return (modules.root(torch.tensor(values)) - 1.0).pow(2).sum()

    return make_trainer(build, loss, [0, 1, 2, 3, 4, 5, 6, 7], **attributes)


class Wanderer(Trainer):
    """A loop of its own that draws from the global generators, in training and in evaluation."""

    name, version, methods = "wanderer", "1", ("walk",)
    models = (ModelRow("none", "No model", parameters=0),)
    inputs = {}  # noqa: RUF012
    artifacts = {"walk": ("weights",)}  # noqa: RUF012
    closed: list[int] = []  # noqa: RUF012

    def begin(self, run, saved):
        start = {"step": 0, "at": torch.rand(2)}
        return start if saved is None else {"step": saved.values["step"], "at": saved.tensors["model/at"]}

    def training_steps(self, run, state):
        try:
            while state["step"] < run.settings.updates:
                state["at"] = state["at"] + torch.randn(2) + random.random() + float(numpy.random.rand())
                state["step"] += 1
                yield StepInfo(state["step"], state["at"].sum())
        finally:
            self.closed.append(state["step"])

    def snapshot(self, state):
        return Snapshot({"model/at": state["at"]}, {"step": state["step"]})

    def evaluate(self, run, state, split):
        loss = state["at"].sum() + torch.randn(()) + random.random()
        yield LossTerms(loss, metrics={"loss": (loss, 1.0)})

    def export(self, run, saved, directory):
        return Artifact("weights")

    def replay(self, run, directory, controls):
        return []
