"""Owns telling where two values differ: nested containers, tensors, arrays, dataclasses, bit for bit.

It must not know what is compared, or why.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch
from torch import Tensor


def first_difference(one: Any, other: Any, name: str = "value") -> str:
    """Where ``one`` and ``other`` first differ, or nothing when they are equal bit for bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return _tensors(one, other, name)
    if isinstance(one, numpy.ndarray) and isinstance(other, numpy.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
        return "" if same else f"{name} differs"
    if type(one) is not type(other):
        return f"{name} is a {type(one).__name__} and a {type(other).__name__}"
    if isinstance(one, Mapping):
        return _mappings(one, other, name)
    if isinstance(one, list | tuple):
        if len(one) != len(other):
            return f"{name} has {len(one)} and {len(other)} parts"
        return _first(first_difference(a, b, f"{name}[{at}]") for at, (a, b) in enumerate(zip(one, other)))  # noqa: B905
    if dataclasses.is_dataclass(one) or "__eq__" not in _own_names(type(one)):
        return _mappings(_attributes(one), _attributes(other), name)
    same = one == other or (one != one and other != other)
    return "" if same else f"{name} is {one!r:.60} and {other!r:.60}"


def global_states() -> dict[str, Any]:
    """The state of every global random generator, by the library it belongs to."""
    return {
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
        "torch": torch.get_rng_state(),
    }


def moved_generators(before: Mapping[str, Any], *, but: str = "") -> list[str]:
    """Names of the global generators that somebody drew from or seeded since ``before``."""
    after = global_states()
    return [name for name in before if name != but and first_difference(before[name], after[name])]


def _tensors(one: Tensor, other: Tensor, name: str) -> str:
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{name} is {one.dtype} {tuple(one.shape)} and {other.dtype} {tuple(other.shape)}"
    if torch.equal(one, other):
        return ""
    if one.is_floating_point() and torch.equal(one.isnan(), other.isnan()) and one.isnan().any():
        return _tensors(one.nan_to_num(), other.nan_to_num(), name)
    count = int((one != other).sum())
    return f"{name} differs in {count} of {one.numel()} places"


def _mappings(one: Mapping[Any, Any], other: Mapping[Any, Any], name: str) -> str:
    for key in [*one, *other]:
        if key not in one or key not in other:
            return f"{name} has {key!r} only once"
    return _first(first_difference(one[key], other[key], f"{name}[{key!r}]") for key in one)


def _own_names(kind: type) -> set[str]:
    """Names that a class or its bases define, those of ``object`` left out."""
    return {name for klass in kind.__mro__[:-1] for name in vars(klass)}


def _attributes(value: Any) -> dict[str, Any]:
    return dict(getattr(value, "__dict__", {}))


def _first(differences: Any) -> str:
    return next((each for each in differences if each), "")
