"""Owns the ``run`` handle: what a trainer may ask while it works.

A trainer gets everything through this one object and keeps nothing global. This file must not import
torch; ``device`` and ``dtype`` are put in by the rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.errors import BadJob, InputMissing, InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.values import JSON

if TYPE_CHECKING:
    import torch

    from app_trainer_sdk.training.randomness import Random

Item = TypeVar("Item")


def no_check() -> None:
    """Nobody can ask to stop."""


def no_progress(label: str, done: int, total: int | None) -> None:
    """Nobody watches."""


class NoRow:
    """What a scope gives where nothing is measured."""

    def hand_over(self, value: Item) -> Item:
        """The value as it is."""
        return value


def no_ledger(name: str) -> AbstractContextManager[NoRow]:
    """Nothing is measured."""
    return nullcontext(NoRow())


class Finished(dict[str, Item]):
    """What finished phases left, by name; asking for one that is not there tells what to change."""

    def __missing__(self, name: str) -> Item:
        raise InternalError(
            f"the result of {name!r} was asked for, and {', '.join(self) or 'no phase'} has finished so far",
            expected="only what stands before it in phases()",
            setting="who asks: examine comes before all phases, and without one of its own a trainer's "
            "dataset('train') is counted there",
        )  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True)
class Run:
    """One job, as its trainer sees it.

    Attributes:
        settings: the hyperparameters with every ``"auto"`` decided.
        model: the catalog row of the base model.
        method: one of the trainer's methods.
        weights: local path of each set of base weights, by role.
        inputs: local path of each input, by name.
        identity: what identifies each set of weights (``weights/<role>``) and, where the trainer tells, the
            data (``data``).
        store: directory of each finished phase, by name.
        facts: facts of each finished phase, by name, and ``facts["examine"]``.
        directory: the job's directory.
        cache: a directory shared between jobs; write beside, then rename.
        device: where the model lives.
        dtype: the precision of the forward pass.
        check: raises ``StopRequested`` when somebody asked to stop. Cheap: call it in every long loop.
        progress: reports ``(label, done, total)`` of a long operation.
        phase: the memory ledger as a context manager, for a scope of your own; it gives the scope's row, whose
            ``hand_over(tensors)`` takes tensors out of the scope.
        allow: formats that can run code when they are read (``pickle``, ``remote_code``), as the job says.
        changed: what resumes of this job were allowed to change: field, saved, now, and after which step.
    """

    settings: Any
    model: ModelRow
    method: str
    directory: Path
    cache: Path
    weights: Mapping[str, Path] = field(default_factory=dict)
    inputs: Mapping[str, Path] = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    store: dict[str, Path] = field(default_factory=Finished)
    facts: dict[str, Mapping[str, JSON]] = field(default_factory=Finished)
    device: torch.device | None = None
    dtype: torch.dtype | None = None
    check: Callable[[], None] = no_check
    progress: Callable[[str, int, int | None], None] = no_progress
    phase: Callable[[str], AbstractContextManager[Any]] = no_ledger
    changed: Sequence[Mapping[str, JSON]] = ()
    allow: frozenset[str] = frozenset()

    def random(self, *key: str | int) -> Random:
        """Randomness for one position, such as ``run.random("caption", index)``."""
        from app_trainer_sdk.training.randomness import Random, derive_seed

        settings: Hyperparameters = self.settings
        return Random(derive_seed(settings.seed, *key))

    def track(self, items: Iterable[Item], label: str, total: int | None = None) -> Iterator[Item]:
        """Yield ``items``, checking for a stop before each and reporting progress."""
        if total is None and isinstance(items, Sized):
            total = len(items)
        for done, item in enumerate(items):
            self.check()
            self.progress(label, done, total)
            yield item
        self.check()

    def input_file(self, name: str, file: str = "") -> Path:
        """A readable file of an input: the input itself, or ``file`` inside it when it is a folder.

        Raises:
            BadJob: ``file`` leads outside the input.
            InputMissing: there is no such input or file.
        """
        if name not in self.inputs:
            raise InputMissing(f"the job has no input {name!r}", expected="it", setting=f"/inputs/{name}")
        root = self.inputs[name]
        path = root / file if root.is_dir() and file else root
        if "\0" in file or not path.resolve().is_relative_to(root.resolve()):
            raise BadJob(
                f"{file!r} leads outside the input {name!r}",
                expected=f"a path inside {root}",
                setting=f"/inputs/{name}",
            )
        if not path.is_file() or not os.access(path, os.R_OK):
            found = f"{path} cannot be read" if path.is_file() else f"no file {path}"
            raise InputMissing(found, expected="a readable file", setting=f"/inputs/{name}")
        return path
