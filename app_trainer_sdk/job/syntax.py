"""Owns the syntax of a job file: JSON or YAML, strictly, with errors by line and column.

It must not know what a job says.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk.arguments import existing_file
from app_trainer_sdk.errors import BadJob


def parse_document(path: Path, setting: str = "--job") -> Any:
    """Parse a JSON or YAML file; a syntax error is told with its line and column.

    Raises:
        BadJob: it is missing, unreadable, or neither; ``setting`` is the argument that named it.
    """
    existing_file(path, "a JSON or YAML file", setting)
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte-order mark
    except UnicodeDecodeError as error:
        found = f"{path} is not UTF-8: {error.reason} at byte {error.start:,}"
        raise BadJob(found, expected="a text file in UTF-8", setting=setting) from None
    except OSError as error:
        found = f"cannot read {path}: {error.strerror}"
        raise BadJob(found, expected="a file that can be read", setting=setting) from None
    return parse_text(text, str(path), setting)


def parse_text(text: str, name: str, setting: str = "--job") -> Any:
    """Parse the text of a document, JSON unless its name ends like YAML; raises as :func:`parse_document`."""
    language, parse = (
        ("YAML", _parse_yaml) if name.lower().endswith((".yaml", ".yml")) else ("JSON", _parse_json)
    )
    if not text.strip():
        raise BadJob(f"{name} is empty", expected=f"a document in {language}", setting=setting)
    try:
        return parse(text)
    except RecursionError:
        found = f"{name} is nested too deeply"
    except ValueError as error:
        found = f"{name} is not {language}: {error}"
    named = "" if language == "YAML" or name.lower().endswith(".json") else ", or .yaml at the end of its name"
    raise BadJob(found, expected=f"valid {language}{named}", setting=setting)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(
            text, object_pairs_hook=unique_keys, parse_constant=refuse_constant, parse_int=whole_number
        )
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{error.msg.removesuffix(' at')} at line {error.lineno}, column {error.colno}"
        ) from None


def _parse_yaml(text: str) -> Any:
    import yaml  # 30 ms that a JSON job need not pay

    from app_trainer_sdk.job.core_yaml import load_yaml

    try:
        return load_yaml(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        words = ", ".join(filter(None, (error.context, error.problem)))
        raise ValueError(f"{words}{place}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def unique_keys(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """An object from its pairs; a key that stands twice is a ``ValueError``, since one would be lost."""
    document = dict(pairs)
    if len(document) != len(pairs):
        twice = next(key for key, _ in pairs if [each for each, _ in pairs].count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice")
    return document


def refuse_constant(word: str) -> None:
    """NaN and Infinity are words of Python's parser, not of JSON."""
    raise ValueError(f"{word} is not a JSON number")


def whole_number(digits: str) -> int:
    """An integer from its digits; Python's own words for too many of them are for programmers."""
    try:
        return int(digits)
    except ValueError:
        raise ValueError(f"a number of {len(digits):,} digits") from None
