"""Owns how the tests train: with the real driver in this process, stopped where a test says, or in a new one.

Nothing is patched: clock, stop token and channel are arguments of the driver.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import multiprocessing
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.channel import RankChannel, StopToken
from app_trainer_sdk.contract import SupervisedTrainer, Trainer
from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.errors import StopRequested
from app_trainer_sdk.handle import Run
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.plan import DeviceFacts, Plan
from app_trainer_sdk.planning.resolve import resolve_plan
from app_trainer_sdk.start import Start
from app_trainer_sdk.training.checkpoint import CheckpointStore, load_checkpoint
from app_trainer_sdk.training.device import DTYPES
from app_trainer_sdk.training.drive import Desk, Drive
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.memory import Reading
from app_trainer_sdk.training.opening import Opened, identity_of
from app_trainer_sdk.training.phases import run_phases
from app_trainer_sdk.values import Artifact, Batch, LossTerms, Modules, Snapshot

CPU = torch.device("cpu")
FACTS = DeviceFacts("cpu", "cpu", bf16=False, cores=1)
TIMINGS = ("seconds", "data_seconds", "data_parts")
PROCESS_SECONDS = 300.0


class CountingToken(StopToken):
    """A wish to stop that comes at the n-th place where the work asks whether to.

    Waiting for a save asks too, as often as it takes: that is no place, so it is not counted.
    """

    def __init__(self, at: int = 0) -> None:
        super().__init__()
        self.at = at
        self.checks = 0

    def place(self) -> None:
        self.checks += 1
        if self.checks == self.at:
            self.request("interrupted")
        StopToken.check(self)


class RecordingChannel(RankChannel):
    """Keeps what was said."""

    def __init__(self, token: StopToken) -> None:
        super().__init__(None, token)
        self.said: list[tuple[str, dict[str, Any]]] = []

    def say(self, kind: str, **facts: Any) -> None:
        json.dumps(facts, allow_nan=False)
        self.said.append((kind, facts))


class StillProbe:
    """Memory that never changes, or changes as a test says: readings are handed out in order."""

    device = "cpu"
    peak_of = "allocated"

    def __init__(self, *allocated: int) -> None:
        self.allocated = list(allocated)
        self.calls: list[str] = []

    def read(self) -> Reading:
        self.calls.append("read")
        return Reading(self.allocated.pop(0) if self.allocated else 1, 0, 0, 0)

    def peak(self) -> int:
        self.calls.append("peak")
        return 7

    def reset(self) -> None:
        self.calls.append("reset")

    def release(self) -> None:
        self.calls.append("release")


@dataclass
class Training:
    """One start of a job in this process: what it found, what it left."""

    trainer: Trainer
    run: Run
    plan: Plan
    layout: JobDirectory
    store: CheckpointStore
    token: CountingToken
    channel: RecordingChannel
    stopped: bool = False
    rows: list[Any] = field(default_factory=list)

    def metrics(self) -> list[dict[str, Any]]:
        """Lines of ``metrics.jsonl`` without the timing fields."""
        return read_lines(self.layout.metrics)

    def evaluations(self) -> list[dict[str, Any]]:
        """Lines of ``evaluations.jsonl`` without the timing fields."""
        return read_lines(self.layout.evaluations)

    def snapshot(self) -> Snapshot:
        """The newest valid checkpoint."""
        checkpoint, _ = self.store.newest()
        assert checkpoint is not None
        return load_checkpoint(checkpoint)

    def applied(self) -> list[dict[str, Any]]:
        """Lines of updates really made."""
        return [line for line in self.metrics() if line["applied"]]


def open_training(
    trainer_class: type[Trainer], directory: Path, *, stop_at: int = 0,
    settings: Mapping[str, Any] | None = None, inputs: Mapping[str, Path] | None = None,
    cache: Path | None = None, **hyperparameters: Any,
) -> Training:  # fmt: skip
    """Everything up to the first update, as a rank does it.

    Args:
        trainer_class: what to train.
        directory: the job's directory.
        stop_at: number of the check in training at which somebody asks to stop; 0 for never.
        settings: overrides after planning, for precision without its device.
        inputs, cache: as in a job.
        hyperparameters: as in a job.
    """
    trainer = trainer_class()
    method, row = trainer.methods[0], trainer.models[0]
    defaults = {**trainer.defaults.get(method, {}), **row.defaults.get(method, {})}
    asked = trainer.hyperparameters_class.read({**defaults, **hyperparameters})
    token = CountingToken()
    rows: list[Any] = []
    ledger = Ledger(StillProbe(), rows.append, policy="report")
    run = Run(
        settings=asked, model=row, method=method, directory=directory, cache=cache or directory / "cache",
        inputs=dict(inputs or {}), device=CPU, dtype=torch.float32, check=token.place, phase=ledger.phase,
    )  # fmt: skip
    plan = _plan(trainer, run, asked, hyperparameters)
    resolved = plan.resolved(asked).model_copy(update=dict(settings or {}))
    run = dataclasses.replace(run, settings=resolved, dtype=DTYPES[plan.precision])
    run_phases(trainer, run, ledger)
    token.at, token.checks = stop_at, 0  # counted from the first update on
    directory.mkdir(parents=True, exist_ok=True)
    layout = JobDirectory(directory)
    store = CheckpointStore(layout.checkpoints, "test-job")
    return Training(trainer, run, plan, layout, store, token, RecordingChannel(token), rows=rows)


def train(trainer_class: type[Trainer], directory: Path, **options: Any) -> Training:
    """Train, or go on training, until the end or until ``stop_at`` asks to stop."""
    training = open_training(trainer_class, directory, **options)
    drive(training)
    return training


def drive(training: Training) -> None:
    """Drive a training as a rank does, from the newest checkpoint if there is one."""
    checkpoint, _ = training.store.newest()
    saved = load_checkpoint(checkpoint) if checkpoint is not None else None
    desk = Desk(
        training.layout, training.store, training.channel, training.token, training.plan, {"test": True},
        clock=time.perf_counter,
    )  # fmt: skip
    threads = torch.get_num_threads()
    torch.set_num_threads(training.plan.threads)
    try:
        Drive(training.trainer, training.run, desk).train(saved)
    except StopRequested:
        training.stopped = True
    finally:
        torch.set_num_threads(threads)


class ListRows:
    """A dataset over a list: an item is (index, value)."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def item(self, index: int, random: Any) -> tuple[int, Any]:
        return index, self.values[index]


def make_trainer(
    build: Callable[[Run], nn.Module | Modules], loss: Callable[..., Any], rows: Any, *,
    units: Callable[[Any], float] = lambda value: 1.0, validation: Any = (), **attributes: Any,
) -> type[SupervisedTrainer]:  # fmt: skip
    """A supervised trainer around the few lines a test is about.

    Args:
        build: makes the root module, or Modules, from the run.
        loss: ``loss(modules, values, random)`` with the values of a microbatch; a scalar sum or LossTerms.
        rows: training rows as a list, or a dataset.
        units: units of one value.
        validation: the same as rows.
        attributes: further class attributes and hooks.

    The row numbers each update trained on are appended to ``trained`` of the class.
    """
    splits = {"train": rows, "validation": validation, "test": ()}

    def build_model(self: Any, run: Run, *, weights: bool) -> Modules:
        built = build(run)
        return built if isinstance(built, Modules) else Modules(built)

    def dataset(self: Any, run: Run, split: str) -> Any:
        return splits[split] if hasattr(splits[split], "item") else ListRows(splits[split])  # or a stream

    def collate(self: Any, run: Run, items: Sequence[Any]) -> Batch:
        values = [value for _, value in items]
        host = {"ids": [index for index, _ in items], "values": values}
        return Batch({}, units=sum(units(value) for value in values), host=host)

    def loss_of(self: Any, modules: Modules, batch: Batch, random: Any) -> LossTerms:
        if torch.is_grad_enabled():
            trained.append(batch.host["ids"])
        terms = loss(modules, batch.host["values"], random)
        return terms if isinstance(terms, LossTerms) else LossTerms(terms)

    def largest_batch(self: Any, run: Run, rows: int) -> Batch:
        return collate(self, run, [(0, splits["train"][0])] * rows)

    def export(self: Any, run: Run, saved: Snapshot, directory: Path) -> Artifact:
        (directory / "weights").mkdir()
        return Artifact("weights")

    def replay(self: Any, run: Run, directory: Path, controls: Sequence[Any]) -> Sequence[Any]:
        return []

    trained: list[list[int]] = []
    written = {
        "name": "tiny", "version": "1", "methods": ("full",), "artifacts": {"full": ("weights",)},
        "models": (ModelRow("m", "A model", parameters=1),), "build_model": build_model, "dataset": dataset,
        "collate": collate, "loss": loss_of, "largest_batch": largest_batch, "export": export, "replay": replay,
    }  # fmt: skip
    made: Any = types.new_class(
        "TinyTrainer", (SupervisedTrainer,), exec_body=lambda body: body.update({**written, **attributes})
    )
    made.trained = trained
    return made


def drive_opened(opened: Opened, start: Start, plan: Plan, store: CheckpointStore, *, stop_at: int = 0) -> bool:
    """Drive a job that was opened as a rank opens it, from its newest checkpoint; whether it was stopped."""
    token = CountingToken(stop_at)
    run = dataclasses.replace(opened.run, check=token.place)
    desk = Desk(start.layout, store, RankChannel(None, token), token, plan, identity_of(opened, start, plan))
    try:
        checkpoint, _ = store.newest()
        saved = load_checkpoint(checkpoint) if checkpoint is not None else None
        Drive(opened.trainer, run, desk).train(saved)
    except StopRequested:
        return True
    return False


def read_lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines without the fields that tell time; every line must be strict JSON."""
    if not path.exists():
        return []
    lines = [json.loads(line, parse_constant=_refuse) for line in path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in TIMINGS} for line in lines]


def same_tensors(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    """Equal names, dtypes and bytes."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and as_bytes(one[name]) == as_bytes(other[name]) for name in one
    )


def as_bytes(tensor: torch.Tensor) -> bytes:
    """A tensor's bytes, NaN included."""
    return tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes() if tensor.dim() else (
        tensor.detach().reshape(1).view(torch.uint8).numpy().tobytes()
    )  # fmt: skip


def fork_server() -> Any:
    """A context whose processes are forked from one that has imported everything once and done nothing else."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [  # DDP imports torch._dynamo, and 8-bit state bitsandbytes: both take longer than most tests
            "torch", "torch._dynamo", "bitsandbytes", "app_trainer_sdk.training.rank",
            "app_trainer_sdk.training.supervised", "pytest",
        ]
    )  # fmt: skip
    return context


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a test module in a process that never saw this one's objects, and give its answer.

    The processes are forked from a server that has imported torch once and done nothing else.
    """
    context = fork_server()
    ours, theirs = context.Pipe(duplex=False)
    source = sys.modules[function.__module__].__file__
    process = context.Process(target=_child, args=(theirs, source, function.__name__, arguments))
    process.start()
    theirs.close()
    try:
        assert ours.poll(PROCESS_SECONDS), f"{function.__name__} did not answer"
        answer, problem = ours.recv()
    finally:
        process.join(60)
        ours.close()
        process.close()
    assert not problem, problem
    return answer


def _child(connection: Any, source: str, name: str, arguments: tuple[Any, ...]) -> None:
    import traceback

    torch.set_num_threads(1)
    answer, problem = None, ""
    try:
        spec = importlib.util.spec_from_file_location(Path(source).stem, source)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        answer = getattr(module, name)(*arguments)
    except BaseException:  # noqa: BLE001 - told by the parent
        problem = traceback.format_exc()
    connection.send((answer, problem))
    connection.close()


def _plan(trainer: Trainer, run: Run, asked: Any, hyperparameters: Mapping[str, Any]) -> Plan:
    examination = trainer.examine(run)
    run.facts["examine"] = examination.facts
    supervised = isinstance(trainer, SupervisedTrainer)
    data = DataFacts(
        rows=examination.rows, fingerprint=examination.fingerprint, group_sizes=examination.group_sizes,
        stream=examination.stream,
        minimum_rows=trainer.minimum_rows if supervised else 1,
        coupled_rows=trainer.coupled_rows if supervised else False,
    )  # fmt: skip
    return resolve_plan(
        asked, trainer=trainer.name, trainer_version=trainer.version, model=run.model.name, method=run.method,
        data=data, device=FACTS, asked=hyperparameters,
    )  # fmt: skip


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is not strict JSON")


def run_of(trainer, tmp_path, **settings):
    """A run with every setting decided."""
    decided = {
        "updates": 4, "warmup_updates": 0, "microbatch": 2, "gradient_accumulation_steps": 1,
        "torch_compile": False, "optim_8bit": False, "gradient_checkpointing": False, "mixed_precision": "no",
        **settings,
    }  # fmt: skip
    decided["global_batch"] = decided["microbatch"] * decided["gradient_accumulation_steps"]
    return Run(
        settings=trainer.hyperparameters_class.read(decided), model=trainer.models[0], method="full",
        directory=tmp_path, cache=tmp_path, device=CPU, dtype=torch.float32,
    )  # fmt: skip


def squares(modules, values, random):
    return modules.root(torch.tensor(values)).pow(2).sum()
