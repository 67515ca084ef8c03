"""Owns the trainer under examination, opened in this process, and a small job for it.

Everything is made once, when a promise first asks for it. This file must not know any promise. Importing it
does not import torch.
"""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app_trainer_sdk.contract import SupervisedTrainer, Trainer
from app_trainer_sdk.job import Job, check_job, read_job
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.testing.processes import Lives
from app_trainer_sdk.testing.verdict import BrokenPromise, NotApplicable

if TYPE_CHECKING:
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.plan import Plan
    from app_trainer_sdk.training.ledger import Policy
    from app_trainer_sdk.training.opening import Opened
    from app_trainer_sdk.values import Snapshot, StepInfo

#: Updates of the small job: as many as take about this long, within these bounds.
RUN_SECONDS = 0.5
FEWEST_UPDATES, MOST_UPDATES = 8, 48


@dataclass(frozen=True)
class Asked:
    """What an author asks to have checked.

    Attributes:
        trainer: an installed trainer's name, ``package.module:Class``, or the class, which must be importable
            by that name in another process.
        model: a model of its catalog; the first when left out.
        method: one of its methods; the first when left out.
        inputs: path of each input of the job, by name.
        hyperparameters: settings of the small job, such as a shorter ``max_length``.
    """

    trainer: str | type[Trainer]
    model: str | None = None
    method: str | None = None
    inputs: Mapping[str, str | Path] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """How another process finds the trainer."""
        if isinstance(self.trainer, str):
            return self.trainer
        return f"{self.trainer.__module__}:{self.trainer.__qualname__}"

    def job(self, extra: Mapping[str, Any] | None = None) -> Job:
        """The job, with ``extra`` hyperparameters where the author says nothing.

        Raises:
            BadJob: what is asked cannot be a job of this trainer.
        """
        trainer = find_trainer(self.reference)
        document: dict[str, Any] = {
            "trainer": self.reference,
            "model": self.model or trainer.models[0].name,
            "inputs": {name: str(path) for name, path in self.inputs.items()},
            "hyperparameters": {**_unless_epochs(extra or {}, self.hyperparameters), **self.hyperparameters},
        }
        if self.method:
            document["method"] = self.method
        job = read_job(document, base=Path.cwd())
        check_job(job, trainer)
        return job


@dataclass
class Started:
    """Training after two updates.

    Attributes:
        state: the trainer's state.
        steps: the facts of the two updates.
        seconds: how long the second one took.
    """

    state: Any
    steps: Sequence[StepInfo]
    seconds: float


class Subject:
    """A trainer under examination.

    Args:
        asked: what to examine.
        folder: where jobs may be written.
    """

    def __init__(self, asked: Asked, folder: Path) -> None:
        self.asked = asked
        self.folder = folder

    @cached_property
    def trainer_class(self) -> type[Trainer]:
        """The class, found as a job finds it."""
        return find_trainer(self.asked.reference)

    @cached_property
    def trainer(self) -> Trainer:
        """An instance."""
        return self.trainer_class()

    @cached_property
    def run(self) -> Run:
        """The handle of the small job, prepared."""
        opened, plan = open_in_this_process(self.asked.job({"updates": FEWEST_UPDATES}), self.folder / "here")
        return prepare_in_this_process(opened, plan).run

    @cached_property
    def started(self) -> Started:
        """Two updates made; the feed is closed, the state stays."""
        state = self.trainer.begin(self.run, None)
        steps = self.trainer.training_steps(self.run, state)
        facts: list[StepInfo] = []
        seconds = 0.0
        try:
            for _ in range(2):
                before = time.perf_counter()
                facts += itertools.islice(steps, 1)
                seconds = time.perf_counter() - before
        finally:
            close = getattr(steps, "close", None)
            if close is not None:
                close()
        return Started(state, facts, seconds)

    @cached_property
    def saved(self) -> Snapshot:
        """The state after two updates, as a checkpoint holds it."""
        from app_trainer_sdk.training.checkpoint import copied

        return copied(self.trainer.snapshot(self.started.state))

    @cached_property
    def small(self) -> dict[str, Any]:
        """Settings of the job that is killed and resumed: long enough to be killed, and not longer."""
        wanted = int(RUN_SECONDS / max(self.started.seconds, 1e-4))
        updates = self.asked.hyperparameters.get("updates", min(MOST_UPDATES, max(FEWEST_UPDATES, wanted)))
        every = max(1, updates // 4) if isinstance(updates, int) else 2
        return {"updates": updates, "checkpoint_every": every, "evaluate_every": max(1, updates // 2)}

    @property
    def is_light(self) -> bool:
        """Whether several jobs of this trainer may run side by side."""
        assert self.run.device is not None
        size = sum(each.numel() * each.element_size() for each in self.saved.tensors.values())
        return self.run.device.type == "cpu" and size < 64 * 2**20

    @cached_property
    def lives(self) -> Lives:
        """The jobs in processes of their own."""
        return Lives(self.asked.job(self.small), self.folder / "jobs", together=self.is_light)

    def close(self) -> None:
        """End what still runs."""
        if "lives" in vars(self):
            self.lives.close()

    def supervised(self) -> tuple[SupervisedTrainer, Run]:
        """The trainer and its handle, for promises about the ordinary loop.

        Raises:
            NotApplicable: the trainer has a loop of its own.
        """
        if not issubclass(self.trainer_class, SupervisedTrainer):
            raise NotApplicable("not a SupervisedTrainer")
        trainer = self.trainer
        assert isinstance(trainer, SupervisedTrainer)
        return trainer, self.run


def open_in_this_process(job: Job, folder: Path) -> tuple[Opened, Plan]:
    """Open a job as a rank does: inputs and weights made local, data examined, plan resolved."""
    from app_trainer_sdk.inputs import fetch_inputs
    from app_trainer_sdk.paths import cache_directory
    from app_trainer_sdk.start import Start
    from app_trainer_sdk.training.opening import open_job, settle_plan, store_of
    from app_trainer_sdk.weights import fetch_weights

    _, row, _ = check_job(job, find_trainer(job.trainer))
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    weights, identities = fetch_weights(job, row, cache, _no_check)
    inputs = fetch_inputs(job, folder / "inputs", _no_check)
    start = Start(
        directory=str(folder), attempt=1, cache=str(cache), job=job.document(),
        inputs={name: str(path) for name, path in inputs.items()},
        weights={role: str(path) for role, path in weights.items()}, weights_identity=identities,
    )  # fmt: skip
    opened = open_job(start, ledger=_ledger(), check=_no_check, progress=lambda *_: None)
    return opened, settle_plan(opened, start, store_of(start.layout, start))[0]


def prepare_in_this_process(opened: Opened, plan: Plan) -> Opened:
    """Run the preparation phases, as a rank does."""
    from app_trainer_sdk.training.opening import prepare

    return prepare(opened, plan, _ledger("raise"))  # an author hears of what a phase keeps here


def source_of(trainer: type[Trainer]) -> str:
    """The file an author has to look at."""
    return Path(inspect.getfile(trainer)).name


def refuse_if_not(value: Any, kind: type, what: str) -> None:
    """Raise :class:`BrokenPromise` unless ``value`` is a ``kind``."""
    if not isinstance(value, kind):
        raise BrokenPromise(f"{what} returned {type(value).__name__}", expected=kind.__name__)


def _ledger(policy: Policy = "report") -> Any:
    from app_trainer_sdk.training.device import pick_device
    from app_trainer_sdk.training.ledger import Ledger
    from app_trainer_sdk.training.memory import probe_for

    return Ledger(probe_for(pick_device()), lambda row: None, policy=policy)


def _unless_epochs(extra: Mapping[str, Any], asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """The kit's own length gives way to an author's epochs."""
    if "epochs" not in asked:
        return extra
    return {name: value for name, value in extra.items() if name != "updates"}


def _no_check() -> None:
    """Nobody can ask to stop."""
