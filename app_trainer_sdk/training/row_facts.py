"""Owns what a dataset tells about its rows for sampling and batching: read once, checked, digested.

A dataset offers ``weights()``, ``lengths()`` or ``groups()`` where it can; each gives one value for each row.
This file must not know what the order of examples makes of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy

from app_trainer_sdk.errors import BadData, BadJob
from app_trainer_sdk.hyperparameters import Hyperparameters

#: What each choice that needs the dataset's help asks it for.
ASKED = {"weighted": "weights", "by_length": "lengths", "by_group": "groups"}


@dataclass(frozen=True)
class RowFacts:
    """One value for each row, where the settings ask for it.

    Attributes:
        weights: in which shares rows are drawn, float64, from 0 to 1, the largest being 1.
        lengths: what rows of similar length are found by, float64.
        groups: number of each row's group from 0, in the order of the groups' names, int64.
        names: the groups' names.
    """

    weights: numpy.ndarray | None = None
    lengths: numpy.ndarray | None = None
    groups: numpy.ndarray | None = None
    names: tuple[str, ...] = ()

    @property
    def group_sizes(self) -> list[int]:
        """Rows of each group."""
        if self.groups is None:
            return []
        sizes: list[int] = numpy.bincount(self.groups, minlength=len(self.names)).tolist()
        return sizes

    def digest(self) -> str:
        """Digest of all that decides the order; empty when nothing was asked."""
        told = [each for each in (self.weights, self.lengths, self.groups) if each is not None]
        return hashlib.sha256(b"".join(each.tobytes() for each in told)).hexdigest()[:16] if told else ""


def read_row_facts(dataset: Any, settings: Hyperparameters, trainer: str) -> RowFacts:
    """Ask the dataset what sampling and batching need.

    Args:
        dataset: the training split.
        settings: ``sampling`` and ``batching`` count.
        trainer: its name, for messages.

    Raises:
        BadJob: the dataset cannot tell.
        BadData: it tells something that no order can be made of.
    """
    told: dict[str, Any] = {}
    for setting in ("sampling", "batching"):
        asked = getattr(settings, setting)
        if asked in ASKED:
            values = _ask(dataset, ASKED[asked], setting, asked, trainer)
            told |= CHECKS[ASKED[asked]](values, f"{ASKED[asked]}() of the training split")
    return RowFacts(**told)


def _ask(dataset: Any, method: str, setting: str, asked: str, trainer: str) -> numpy.ndarray:
    ask: Callable[[], Any] | None = getattr(dataset, method, None)
    if ask is None:
        raise BadJob(
            f"{setting} {asked!r}, and the training data of the trainer {trainer} has no {method}()",
            expected=f"another {setting}, or a dataset with the method {method}()",
            setting=f"/hyperparameters/{setting}",
        )  # fmt: skip
    values = numpy.asarray(ask())
    if values.shape != (len(dataset),):
        raise BadData(
            f"{method}() of the training split has shape {values.shape}",
            expected=f"one value for each of {len(dataset)} rows",
        )
    return values


def _weights(values: numpy.ndarray, where: str) -> dict[str, Any]:
    weights = _numbers(values, where)
    if (weights < 0).any():
        raise BadData(f"{where}: {_first(weights, weights < 0)}", expected="0 or more")
    if not weights.any():
        raise BadData(f"{where}: all are 0", expected="one above 0")
    return {"weights": weights / weights.max()}  # so that no sum can overflow


def _lengths(values: numpy.ndarray, where: str) -> dict[str, Any]:
    return {"lengths": _numbers(values, where)}


def _groups(values: numpy.ndarray, where: str) -> dict[str, Any]:
    if values.dtype.kind == "f":
        _numbers(values, where)  # two NaN are never of one group
    names, numbers = numpy.unique(values, return_inverse=True)
    return {
        "groups": numbers.astype(numpy.int64, copy=False), "names": tuple(map(str, names.tolist())),
    }  # fmt: skip


CHECKS: dict[str, Callable[[numpy.ndarray, str], dict[str, Any]]] = {
    "weights": _weights, "lengths": _lengths, "groups": _groups
}  # fmt: skip


def _numbers(values: numpy.ndarray, where: str) -> numpy.ndarray:
    if values.dtype.kind not in "iufb":
        raise BadData(f"{where} are of type {values.dtype}", expected="numbers")
    numbers = values.astype(numpy.float64)
    wrong = ~numpy.isfinite(numbers)
    if wrong.any():
        raise BadData(f"{where}: {_first(numbers, wrong)}", expected="finite numbers")
    return numbers


def _first(values: numpy.ndarray, wrong: numpy.ndarray) -> str:
    row = int(numpy.argmax(wrong))
    return f"row {row} has {values[row]:g}"
