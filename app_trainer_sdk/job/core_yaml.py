"""Owns reading a job written as YAML, so that it means what the same words mean in JSON.

YAML 1.1 reads ``1e-4`` as text, ``no`` as false and ``2026-11-30`` as a date. Here plain words follow YAML
1.2's core schema: null, true, false, numbers, and text for all else. This file must not know what a job
says, and is the only one that imports yaml at its top.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

import yaml

from app_trainer_sdk.job.syntax import unique_keys, whole_number

_NUMBER_STARTS = list("-+.0123456789")

#: Characters and values that a document may have once its aliases are written out.
MOST_WRITTEN_OUT = 64 * 2**20


class _CoreLoader(yaml.SafeLoader):
    """PyYAML's safe loader with the plain words of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - none inherited

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping; a key that stands twice is refused, since one of the two would be lost."""
        pairs = [(self._key(key), self.construct_object(value, deep=True)) for key, value in node.value]
        return unique_keys(pairs)

    def _key(self, node: yaml.Node) -> str:
        key = self.construct_object(node, deep=True)
        if not isinstance(key, str):
            raise ValueError(f"the key {key!r} is not text")
        return key


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(node.value))


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    digits = str(node.value)
    return int(digits, 0) if digits[:2] in ("0x", "0o") else whole_number(digits)


def _plain(tag: str, pattern: str, starts: list[str]) -> None:
    _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), starts)


_plain("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""])
_plain("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF"))
_plain("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", _NUMBER_STARTS)
_plain("float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", _NUMBER_STARTS)
_CoreLoader.add_constructor("tag:yaml.org,2002:float", _float)
_CoreLoader.add_constructor("tag:yaml.org,2002:int", _integer)


def load_yaml(text: str) -> Any:
    """Parse one YAML document that JSON could say as well.

    Raises:
        yaml.YAMLError: it is not YAML.
        ValueError: it says what JSON cannot: a key twice, a key that is no text, an alias to itself; or aliases
            of aliases make more of it than memory may hold.
    """
    document = yaml.load(text, Loader=_CoreLoader)  # noqa: S506 - a safe loader with other words
    size = _written_out(document, {})
    if size > MOST_WRITTEN_OUT:
        raise ValueError(f"with its aliases written out it has {size:.3g} characters, of {len(text):,}")
    try:
        json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"it says what JSON cannot: {error}") from None
    return document


def _written_out(value: Any, known: dict[int, int]) -> int:
    """Characters and values below ``value``, what an alias repeats counted each time; it is looked at once."""
    if isinstance(value, str):
        return 1 + len(value)
    if not isinstance(value, (dict, list)):
        return 1
    if id(value) not in known:
        known[id(value)] = 0  # an alias to itself: refused below, by another name
        parts = [*value, *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_written_out(part, known) for part in parts)
    return known[id(value)]
