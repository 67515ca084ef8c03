"""Owns a trainer whose phase runs in a process of its own: importable by name, as such a process needs it."""

from __future__ import annotations

import os
import signal
import time

import numpy
import torch
from small_models import Scalars
from torch import nn

from app_trainer_sdk import Artifact, Batch, LossTerms, ModelRow, Modules, SupervisedTrainer
from app_trainer_sdk.errors import BadData
from app_trainer_sdk.values import Phase

GIB = 1 << 30


class Apart(SupervisedTrainer):
    """A trainer whose phase runs apart and does as the input says."""

    name, version, methods = "apart", "1", ("full",)
    models = (ModelRow("m", "A model", parameters=1),)
    preparation = ("encode",)
    artifacts = {"full": ("weights",)}  # noqa: RUF012

    def phases(self, run):
        return [Phase("encode", encode, own_process=True)]

    def build_model(self, run, *, weights):
        return Modules(Scalars(1.0))

    def dataset(self, run, split):
        return [1.0]

    def collate(self, run, items):
        return Batch({}, units=1)

    def loss(self, modules, batch, random):
        return LossTerms(modules.root.w.sum())

    def largest_batch(self, run, rows):
        return Batch({}, units=1)

    def export(self, run, saved, directory):
        return Artifact("weights")

    def replay(self, run, directory, controls):
        return []


def encode(run, directory):
    """Leave memory behind, fail, die or wait, as the file says."""
    order = run.inputs["order"].read_text()
    (directory / "result").write_text(order)
    if order == "fail":
        raise BadData("row 3 is empty", expected="text")
    if order == "odd":
        raise OddError("cannot travel", print)
    if order == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    with run.phase("load"):
        kept.append(numpy.ones(GIB // 8) if order == "leak" else nn.Linear(4, 4))
    for _ in run.track(range(10_000 if order == "wait" else 3), "encode"):
        time.sleep(0.01 if order == "wait" else 0)
    return {"process": os.getpid(), "draw": float(torch.rand(())), "threads": torch.get_num_threads()}


class OddError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, text, function):
        super().__init__(text)
        self.function = lambda: function


kept = []
