"""Owns how a trainer is found by its name: the entry-point group ``app_trainer_sdk.trainers``.

Only the trainer asked for is loaded, so that a broken image beside it does no harm. This file must not
import torch, and must not know any particular trainer.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.errors import (
    BadJob,
    DependencyUnavailable,
    InternalError,
    Problem,
    TrainerError,
    did_you_mean,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "app_trainer_sdk.trainers"


def find_trainer(name: str, *, entries: Sequence[EntryPoint] | None = None) -> type[Trainer]:
    """The trainer class called ``name``.

    Args:
        name: an installed trainer's name, or ``package.module:Class`` for one that is not installed yet;
            its module is looked for in the current directory too.
        entries: entry points to search instead of the installed ones.

    Raises:
        BadJob: there is no such trainer.
        DependencyUnavailable: its module, or one that it imports, is not there.
        InternalError: its module fails in another way, or two distributions offer the name.
    """
    if ":" in name:
        return _trainer_at(name)
    installed = _by_name(_installed() if entries is None else entries)
    if name not in installed:
        expected = "the name of an installed trainer, or package.module:Class"
        raise _no_such_trainer(name, expected, did_you_mean(name, installed))
    return _load(installed[name])


def all_trainers(*, entries: Sequence[EntryPoint] | None = None) -> dict[str, type[Trainer]]:
    """Every installed trainer by name, sorted by name.

    Args:
        entries: entry points to load instead of the installed ones.

    Raises:
        DependencyUnavailable: a trainer's module, or one that it imports, is not there.
        InternalError: a trainer's module fails in another way, or two distributions offer one name.
    """
    installed = _by_name(_installed() if entries is None else entries)
    return {name: _load(installed[name]) for name in sorted(installed)}


@cache
def _installed() -> Sequence[EntryPoint]:
    """Every distribution's entry points are read for it, once in a process."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _by_name(entries: Sequence[EntryPoint]) -> dict[str, EntryPoint]:
    """Entry points by name; one object offered twice counts once, two objects under one name are refused."""
    found: dict[str, EntryPoint] = {}
    for entry in entries:
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise InternalError(
                f"two trainers are called {entry.name!r}: {_origin(other)} and {_origin(entry)}",
                expected="each name once",
                setting=f"the entry point in one of them, or uninstall {_distribution(entry)}",
            )
    return found


def _load(entry: EntryPoint) -> type[Trainer]:
    try:
        found = entry.load()
    except (Exception, SystemExit) as error:  # a module must not end the process that reads it
        raise _failed_import(f"trainer {entry.name!r}", _origin(entry), error) from error
    problem = _not_a_trainer(found)
    if problem:
        raise InternalError(
            f"trainer {entry.name!r} is {_origin(entry)}, {problem}",
            expected="a finished trainer class",
            setting=f'the entry point "{entry.name}" of {_distribution(entry)}',
        )
    trainer: type[Trainer] = found
    if trainer.name != entry.name:
        raise InternalError(
            f"entry point {entry.name!r} leads to {_origin(entry)}, whose name is {trainer.name!r}",
            expected="both to be the same word",
            setting=f'{trainer.__qualname__}.name or the entry point "{entry.name}"',
        )
    return trainer


def _trainer_at(reference: str) -> type[Trainer]:
    """The class at ``package.module:Class``; what an author uses before the package is installed."""
    module_name, _, class_name = reference.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *class_name.split(".")]):
        raise _no_such_trainer(reference, "package.module:Class")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:  # a console script, unlike python -m, does not look here
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            expected = f"a module {module_name} that is installed or below {here}"
            raise _no_such_trainer(reference, expected) from error
        raise _failed_import(f"trainer {reference!r}", module_name, error) from error
    except (Exception, SystemExit) as error:
        raise _failed_import(f"trainer {reference!r}", module_name, error) from error
    found: Any = module
    for part in class_name.split("."):
        found = getattr(found, part, None)
    problem = _not_a_trainer(found)
    if problem:
        known = [name for name, value in vars(module).items() if not _not_a_trainer(value)]
        hint = did_you_mean(class_name, known)
        raise _no_such_trainer(reference, f"a trainer class in {module_name}", hint, problem)
    trainer: type[Trainer] = found
    return trainer


def _not_a_trainer(found: Any) -> str:
    """Why ``found`` is no finished trainer class, or nothing."""
    if found is None:
        return "which is not there"
    if not (isinstance(found, type) and issubclass(found, Trainer)):
        return "which is not a subclass of Trainer"
    if inspect.isabstract(found):
        return "which is an abstract base"
    return ""


def _no_such_trainer(name: str, expected: str, hint: str = "", found: str = "") -> BadJob:
    shown = f"{name!r}, {found}" if found else repr(name)
    return BadJob("there is no such trainer:", problems=[Problem("/trainer", shown, expected, hint)])


def _failed_import(subject: str, origin: str, error: BaseException) -> TrainerError:
    found = f"{subject} cannot be imported from {origin}: {type(error).__name__}: {error}"
    if isinstance(error, ModuleNotFoundError):
        return DependencyUnavailable(found, expected=f"the module {error.name}", setting="what is installed")
    return InternalError(found, expected="a module that imports", setting="that module")


def _origin(entry: EntryPoint) -> str:
    return f"{entry.value} of {_distribution(entry)}"


def _distribution(entry: EntryPoint) -> str:
    distribution = getattr(entry, "dist", None)
    return f"distribution {distribution.name} {distribution.version}" if distribution else "no distribution"
