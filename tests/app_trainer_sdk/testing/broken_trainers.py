"""Trainers that break one promise each: the toy's methods with one replaced; children find them by name."""

from __future__ import annotations

import itertools
import random
from typing import Any

from app_trainer_sdk import (
    Artifact,
    Batch,
    Examination,
    IterableStream,
    LossTerms,
    Phase,
    Snapshot,
    StatefulStream,
    StepInfo,
    SupervisedTrainer,
    Trainer,
)
from app_trainer_sdk.testing.toys import ToyHyperparameters, ToyReader, ToyRows, ToyTrainer

ENCODERS: dict[str, Any] = {}
EIGHT = {"full": {"updates": 8}}
FACTS = ("version", "methods", "models", "hyperparameters_class", "inputs", "artifacts")
METHODS = ("examine", "build_model", "dataset", "collate", "loss", "largest_batch", "export", "replay")


def toy(name: str, **replaced: Any) -> type:
    """The toy with some of its parts replaced."""
    parts = {each: vars(ToyTrainer)[each] for each in (*FACTS, *METHODS)}
    namespace = {**parts, "name": name.lower(), "__module__": __name__, "__qualname__": name, **replaced}
    return type(SupervisedTrainer)(name, (SupervisedTrainer,), namespace)


class Rows:
    """Rows of the toy whose features come from ``draw``."""

    def __init__(self, count: int, draw: Any) -> None:
        self._count, self._draw, self.calls = count, draw, itertools.count()

    def __len__(self) -> int:
        return self._count

    def item(self, index, random):
        import torch

        x = torch.full((8,), self._draw(self, index, random))
        return {"x": x, "y": x.sum(), "w": 1.0}


def rows_of(draw):
    def dataset(self, run, split):
        return Rows(run.settings.rows if split == "train" else 10, draw)

    return dataset


def narrow_model(self, run, *, weights):
    modules = ToyTrainer.build_model(self, run, weights=weights)
    modules.root.bfloat16()
    modules.root.register_forward_pre_hook(lambda module, x: x[0].bfloat16())
    modules.root.register_forward_hook(lambda module, x, out: out.float())
    return modules


Narrow = toy("Narrow", build_model=narrow_model)


def draw_from_numpy(rows, index, random):
    import numpy

    return float(numpy.random.rand())


def draw_from_a_counter(rows, index, random):
    return float(next(rows.calls))


class DeclaredRows(Rows):
    uses_global_random = True


def declared_dataset(self, run, split):
    return DeclaredRows(run.settings.rows if split == "train" else 10, draw_from_numpy)


def mean_loss(self, modules, batch, random):
    error = (modules.root(batch.tensors["x"]).squeeze(-1) - batch.tensors["y"]) ** 2
    return LossTerms(error.mean())


def torch_noise_loss(self, modules, batch, random):
    import torch

    x = batch.tensors["x"]
    error = (modules.root(x + torch.randn_like(x)).squeeze(-1) - batch.tensors["y"]) ** 2
    return LossTerms(error.sum())


def numpy_noise_loss(self, modules, batch, random):
    import numpy

    error = (modules.root(batch.tensors["x"] + numpy.random.rand()).squeeze(-1) - batch.tensors["y"]) ** 2
    return LossTerms(error.sum())


def endless_loss(self, modules, batch, random):
    return LossTerms(ToyTrainer.loss(self, modules, batch, random).sum * float("inf"))


def one_unit_collate(self, run, items):
    batch = ToyTrainer.collate(self, run, items)
    return Batch(batch.tensors, 1, batch.host)


def no_unit_collate(self, run, items):
    batch = ToyTrainer.collate(self, run, items)
    return Batch(batch.tensors, 0, batch.host)


def short_largest_batch(self, run, rows):
    return ToyTrainer.largest_batch(self, run, 1)


def light_largest_batch(self, run, rows):
    import torch

    batch = ToyTrainer.largest_batch(self, run, rows)
    return Batch({**batch.tensors, "x": torch.zeros(rows, 1)}, batch.units, batch.host)


def restless_examine(self, run):
    return Examination(rows=run.settings.rows, fingerprint=str(id(object())) + str(next(TICKS)))


class ForgetfulReader(ToyReader):
    """Its state is never where it is."""

    def state_dict(self):
        return {"read": 0}


def stream_of(make):
    def dataset(self, run, split):
        rows = ToyRows(run.settings.rows, run.settings)
        return make(rows, run.settings.rows) if split == "train" else rows

    return dataset


def forgetful_stream(rows, count):
    return StatefulStream(lambda epoch: ForgetfulReader(count, epoch), item=rows.item)


def restless_stream(rows, count):
    return IterableStream(lambda epoch: random.sample(range(count), count), item=rows.item)


def streaming_examine(resume):
    def examine(self, run):
        return Examination(rows=None, stream=resume)

    return examine


def misgrouping_examine(self, run):
    return Examination(rows=run.settings.rows, group_sizes=[run.settings.rows])


def miscounting_examine(self, run):
    return Examination(rows=run.settings.rows + 1)


TICKS = itertools.count()


def training_measure(self, modules, batch, random):
    next(modules.root.parameters()).data.add_(1.0)
    return self.loss(modules, batch, random)


def remembering_build(self, run, *, weights):
    self._modules = ToyTrainer.build_model(self, run, weights=weights)
    return self._modules


def export_from_memory(self, run, saved, directory):
    memory = {f"model/{name}": each for name, each in self._modules.root.state_dict().items()}
    return ToyTrainer.export(self, run, Snapshot(memory), directory)


def export_of_nothing(self, run, saved, directory):
    (directory / "weights").mkdir()
    (directory / "weights" / "model.txt").write_text("the same for everyone")
    return Artifact("weights", controls=[1.0], expected=[1.0])


def export_elsewhere(self, run, saved, directory):
    (directory / "somewhere").mkdir()
    return Artifact("weights", controls=[1.0], expected=[1.0])


def failing_collate(self, run, items):
    raise ValueError("no such column")


def encode_and_keep(run, directory):
    import torch

    ENCODERS["last"] = torch.nn.Linear(100, 100)
    return {}


def keeping_phases(self, run):
    return [Phase("encode", encode_and_keep)]


MeanLoss = toy("MeanLoss", loss=mean_loss)
OneUnit = toy("OneUnit", collate=one_unit_collate)
NumpyItems = toy("NumpyItems", dataset=rows_of(draw_from_numpy))
DeclaredItems = toy("DeclaredItems", dataset=declared_dataset)
CountingItems = toy("CountingItems", dataset=rows_of(draw_from_a_counter))
NumpyLoss = toy("NumpyLoss", loss=numpy_noise_loss)
TorchNoise = toy("TorchNoise", loss=torch_noise_loss)
EndlessLoss = toy("EndlessLoss", loss=endless_loss)
NoUnits = toy("NoUnits", collate=no_unit_collate)
KeepingPhase = toy("KeepingPhase", preparation=("encode",), phases=keeping_phases)
FailingCollate = toy("FailingCollate", collate=failing_collate)
ShortLargest = toy("ShortLargest", largest_batch=short_largest_batch)
LightLargest = toy("LightLargest", largest_batch=light_largest_batch)
RestlessExamine = toy("RestlessExamine", examine=restless_examine)
ForgetfulStream = toy(
    "ForgetfulStream", dataset=stream_of(forgetful_stream), examine=streaming_examine("exact"), defaults=EIGHT
)
RestlessStream = toy(
    "RestlessStream", dataset=stream_of(restless_stream), examine=streaming_examine("by replay"), defaults=EIGHT
)
Misgrouping = toy("Misgrouping", examine=misgrouping_examine)
Miscounting = toy("Miscounting", examine=miscounting_examine)
TrainingMeasure = toy("TrainingMeasure", measure=training_measure)
ExportFromMemory = toy("ExportFromMemory", build_model=remembering_build, export=export_from_memory)
ExportOfNothing = toy("ExportOfNothing", export=export_of_nothing)
ExportElsewhere = toy("ExportElsewhere", export=export_elsewhere)
Coupled = toy("Coupled", coupled_rows=True, loss=mean_loss)


class Descent:
    """The state of a loop of its own: a weight that falls with momentum."""

    def __init__(self) -> None:
        import torch

        self.weight, self.momentum, self.step = torch.full((4,), 3.0), torch.zeros(4), 0


class ForgetfulTrainer(Trainer):
    """A loop of its own whose snapshot forgets the momentum."""

    name = "forgetful"
    version = "1"
    methods = ("full",)
    models = ToyTrainer.models
    inputs = ToyTrainer.inputs
    artifacts = ToyTrainer.artifacts
    hyperparameters_class = ToyHyperparameters
    defaults = {"full": {"updates": 20}}  # noqa: RUF012

    def begin(self, run, saved):
        state = Descent()
        if saved is not None:
            state.weight, state.step = saved.tensors["model/weight"].clone(), saved.values["step"]
        return state

    def training_steps(self, run, state):
        while state.step < run.settings.updates:
            state.momentum = 0.9 * state.momentum + state.weight
            state.weight = state.weight - 0.01 * state.momentum
            state.step += 1
            yield StepInfo(state.step, (state.weight**2).sum())

    def snapshot(self, state):
        return Snapshot({"model/weight": state.weight}, {"step": state.step})

    def evaluate(self, run, state, split):
        return iter(())

    def export(self, run, saved, directory):
        from safetensors.torch import save_file

        (directory / "weights").mkdir()
        save_file(saved.section("model"), directory / "weights" / "model.safetensors")
        return Artifact("weights", controls=[0], expected=[saved.tensors["model/weight"][0].item()])

    def replay(self, run, directory, controls):
        from safetensors.torch import load_file

        return [load_file(directory / "model.safetensors")["weight"][at].item() for at in controls]


class HalfRestored(Trainer):
    """A loop of its own that saves everything and does not put it back."""

    name = "half-restored"
    version = "1"
    methods = ("full",)
    models = ToyTrainer.models
    inputs = ToyTrainer.inputs
    artifacts = ToyTrainer.artifacts
    hyperparameters_class = ToyHyperparameters
    defaults = {"full": {"updates": 20}}  # noqa: RUF012
    training_steps = ForgetfulTrainer.training_steps
    begin = ForgetfulTrainer.begin
    evaluate = ForgetfulTrainer.evaluate
    export = ForgetfulTrainer.export
    replay = ForgetfulTrainer.replay

    def snapshot(self, state):
        tensors = {"model/weight": state.weight, "optimizer/momentum": state.momentum}
        return Snapshot(tensors, {"step": state.step})
