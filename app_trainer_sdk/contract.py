"""Owns the contract of a trainer: what an image's author writes, checked when the class is written.

Two abstract bases. :class:`Trainer` is the whole lifecycle, for trainers with a loop of their own.
:class:`SupervisedTrainer` is the ordinary loop done for you: a model, a dataset, a loss. Whatever is not
abstract and not named in ``OPTIONAL_HOOKS`` is final, and a concrete trainer is final itself.

This file must not import torch, not even through others: ``describe``, job checks and the supervisor read
trainers on machines whose GPU driver is broken. What is imported inside the final methods of
:class:`SupervisedTrainer` is the only door to the other side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from app_trainer_sdk.catalog import ModelRow, Requirements
from app_trainer_sdk.contract_check import check_trainer_class
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
    StepInfo,
    Stream,
)

if TYPE_CHECKING:
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.training.randomness import Random


class Trainer(ABC):
    """The lifecycle of one job. Subclass it when the ordinary loop does not fit.

    The SDK calls, in this order: ``examine``, ``phases``, ``begin``, then drives ``training_steps`` and
    between its yields calls ``snapshot`` and ``evaluate``; then ``export`` from the last checkpoint, and
    ``replay`` in a new process. A trainer keeps nothing on ``self``: what lives, lives in the state that
    ``begin`` returns.
    """

    name: ClassVar[str]
    """The word a job uses, such as ``text``."""
    version: ClassVar[str]
    """Version of the trainer's numbers: raise it when the same job would train differently."""
    models: ClassVar[Sequence[ModelRow]]
    """The catalog: base models on offer."""
    methods: ClassVar[Sequence[str]]
    """Ways to train, the default one first: ``lora``, ``full``, ``head``, ``splat`` ..."""
    hyperparameters_class: ClassVar[type[Hyperparameters]] = Hyperparameters
    """The settings; a subclass of :class:`Hyperparameters` to add more."""
    defaults: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Defaults by method that differ from the hyperparameters class."""
    inputs: ClassVar[Mapping[str, Input]] = {"dataset": Input("The training data.")}
    """Inputs a job gives, by name."""
    artifacts: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Names of the folders ``export`` writes, by method; the first is the one ``replay`` loads."""
    preparation: ClassVar[Sequence[str]] = ()
    """Names of the phases ``phases`` may return, for ``describe``."""
    requirements: ClassVar[Requirements] = Requirements()
    """What the machine needs besides device memory."""

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if cls.__module__ != __name__:
            check_trainer_class(cls, bases=(Trainer, SupervisedTrainer))

    def examine(self, run: Run) -> Examination:
        """Optional hook: read the index of the data, before any weight is loaded.

        Returns the number of training rows (None when the trainer has no rows), a fingerprint, and facts
        for the report. Raise :class:`~app_trainer_sdk.errors.BadData` for data that cannot train.
        """
        return Examination(rows=None)

    def phases(self, run: Run) -> Sequence[Phase]:
        """Optional hook: preparation in order, each a named function that writes files and returns facts.

        A later phase reads an earlier one's files at ``run.store[name]`` and its facts at ``run.facts[name]``.
        A finished phase is skipped when the job resumes.
        """
        return ()

    def phase_shapes(self, run: Run) -> Mapping[str, PhaseShapes | None]:
        """Optional hook: what phases hold on the device at their fullest, by name, so that it is planned for.

        None for a phase that leaves the device alone. A phase that is not named is told as not predicted.
        Called where there are no inputs, weights or results of earlier phases.
        """
        return {}

    @abstractmethod
    def begin(self, run: Run, saved: Snapshot | None) -> Any:
        """Build the state to train from, or rebuild it from a snapshot so that it continues exactly.

        The state is one object that ``training_steps`` changes in place.
        """

    @abstractmethod
    def training_steps(self, run: Run, state: Any) -> Iterator[StepInfo]:
        """Make updates and yield after each. Between two yields the SDK owns the thread.

        Updates are counted from 1, and after a snapshot on from its; at the plan's last one the SDK ends this.
        """

    @abstractmethod
    def snapshot(self, state: Any) -> Snapshot:
        """The state as tensors by canonical name and JSON values; references, since the SDK copies."""

    @abstractmethod
    def evaluate(self, run: Run, state: Any, split: str) -> Iterator[LossTerms]:
        """Yield the terms of ``split`` batch by batch; leave the state as it was.

        Only ``metrics`` are read: report the loss as one of them, ``{"loss": (sum, count)}``.
        """

    @abstractmethod
    def export(self, run: Run, saved: Snapshot, directory: Path) -> Artifact:
        """Write the artifacts' folders into ``directory``, from a checkpoint; training's state is gone."""

    @abstractmethod
    def replay(self, run: Run, directory: Path, controls: Sequence[JSON]) -> Sequence[JSON]:
        """Load the artifact as its user would, in a new process, and answer the controls.

        ``directory`` is the artifact's own folder, the first of ``artifacts`` for the method.
        """


class SupervisedTrainer(Trainer):
    """The ordinary loop: a model, a dataset, a loss that sums over rows.

    The SDK does order, accumulation, normalisation, clipping, precision, optimizer, schedule, checkpoints,
    resume, evaluation, cancellation and events.
    """

    coupled_rows: ClassVar[bool] = False
    """True when the rows of a batch see each other (contrastive losses): they are never split."""
    minimum_rows: ClassVar[int] = 1
    """Least rows a microbatch may have: 2 for a model with batch norm. A shorter rest is merged."""
    may_lack_gradient: ClassVar[Sequence[str]] = ()
    """Prefixes of trainable parameters that need not get a gradient in the first update (unused experts)."""
    depth_setting: ClassVar[str] = ""
    """Name of the setting that keeps only the first blocks of the model, 0 for all of them; planning tries the
    memory of few blocks with it. Without one every block is tried."""

    def examine(self, run: Run) -> Examination:
        """Optional hook, as in :class:`Trainer`; by default the length of the training split."""
        from app_trainer_sdk.training import supervised

        return supervised.examine(self, run)

    @abstractmethod
    def build_model(self, run: Run, *, weights: bool) -> Modules:
        """Build the modules, on the CPU. With ``weights`` false only shapes matter: load nothing."""

    @abstractmethod
    def dataset(self, run: Run, split: str) -> Dataset | Stream:
        """The rows of ``split`` (``train``, ``validation``, ``test``); empty when there is no such split.

        For ``train`` it may be a :class:`~app_trainer_sdk.values.Stream`.
        """

    @abstractmethod
    def collate(self, run: Run, items: Sequence[Any]) -> Batch:
        """One batch from dataset items, with its units: what the loss sum is divided by."""

    @abstractmethod
    def loss(self, modules: Modules, batch: Batch, random: Random) -> LossTerms:
        """The *sum* of the loss over the batch's units. Noise comes from ``random``."""

    @abstractmethod
    def largest_batch(self, run: Run, rows: int) -> Batch:
        """The heaviest batch of ``rows`` rows the settings admit, made without data."""

    def parameter_groups(self, run: Run, modules: Modules) -> Sequence[Mapping[str, Any]]:
        """Optional hook: groups for the optimizer, ``{"params": [...], "lr_scale": 0.1, ...}``."""
        return [{"params": [each for each in modules.root.parameters() if each.requires_grad]}]

    def measure(self, modules: Modules, batch: Batch, random: Random) -> LossTerms:
        """Optional hook: loss and metrics for evaluation, when they differ from ``loss``."""
        return self.loss(modules, batch, random)

    def show(self, run: Run, batch: Batch) -> Sequence[JSON]:
        """Optional hook: the batch as rows a person can read."""
        return ()

    def begin(self, run: Run, saved: Snapshot | None) -> Any:
        from app_trainer_sdk.training import supervised

        return supervised.begin(self, run, saved)

    def training_steps(self, run: Run, state: Any) -> Iterator[StepInfo]:
        from app_trainer_sdk.training import supervised

        return supervised.training_steps(self, run, state)

    def snapshot(self, state: Any) -> Snapshot:
        from app_trainer_sdk.training import state as training_state

        return training_state.snapshot(state)

    def evaluate(self, run: Run, state: Any, split: str) -> Iterator[LossTerms]:
        from app_trainer_sdk.training import evaluation

        return evaluation.evaluate(self, run, state, split)
