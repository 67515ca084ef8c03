"""Owns the reading of a JSONL input: one object a line, or an error that names file, line and column.

Shared by the images whose users write rows as JSON. It must not know what a row means, splits or torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from app_trainer_sdk.errors import BadData, BadJob
from app_trainer_sdk.handle import Run

T = TypeVar("T")


def read_rows(
    run: Run, name: str, row: Callable[[dict[str, Any], str], T], *, file: str, setting: str
) -> list[T]:
    """What ``row`` makes of every line of the input ``name``, in file order.

    Args:
        run: where the input lies; told of progress, and asked for a stop before each line.
        name: the input.
        row: takes a line's object and its place, ``file:line``.
        file: which file of the input, when that is a folder; empty for its only ``.jsonl``.
        setting: the hyperparameter that names ``file``, for messages.

    Raises:
        BadData: a line is not a JSON object, or there is none.
        BadJob: the input is a folder and nothing says which file.
        InputMissing: there is no such file.
    """
    path, where = _file_of(run, name, file, setting), f"/inputs/{name}"
    rows = [
        row(_object(line, place, where), place)
        for place, line in run.track(_lines(path, where), f"read {name}")
    ]
    if not rows:
        raise BadData(f"{path.name}: no row", expected="at least one JSON object on a line", setting=where)
    return rows


def check_characters(text: str, what: str, place: str) -> None:
    r"""JSON can say one half of a surrogate pair, ``\ud83d``; no tokenizer takes it, no file could hold it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"{place}: {what} has half a character, {text[error.start]!a}"
        raise BadData(found, expected="whole ones", setting=place) from None


def kind_of(value: Any) -> str:
    """What a JSON value is, in JSON's words: ``a number``, ``null``."""
    words = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return words.get(type(value), "a number")


def missing_field(values: dict[str, Any], field: str, place: str, *, expected: str, setting: str) -> BadData:
    """The error of a row without ``field``: which fields it has, and the hyperparameter that names it."""
    names = ", ".join(map(repr, list(values)[:8])) or "none"
    return BadData(
        f"{place}: no field {field!r} among {names}", expected=expected, setting=f"/hyperparameters/{setting}"
    )


def _file_of(run: Run, name: str, file: str, setting: str) -> Path:
    root = run.inputs.get(name)
    if root is not None and root.is_dir() and not file:
        found = sorted(path.name for path in root.glob("*.jsonl"))
        if len(found) != 1:
            raise BadJob(
                f"the folder of input {name!r} has {len(found)} .jsonl files: {', '.join(found[:5]) or 'none'}",
                expected="the file to read",
                setting=f"/hyperparameters/{setting}",
            )
        file = found[0]
    return run.input_file(name, file)


def _lines(path: Path, setting: str) -> Iterator[tuple[str, str]]:
    """Lines with their place; blank ones are passed over, a byte-order mark is dropped."""
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            place = f"{path.name}:{number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                found = f"byte {raw[error.start]:#04x} at column {error.start + 1} is not UTF-8"
                raise BadData(f"{place}: {found}", expected="JSON in UTF-8", setting=setting) from None
            if line:
                yield place, line


def _object(line: str, place: str, setting: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except json.JSONDecodeError as error:
        found = f"{place}: invalid JSON at column {error.colno}: {error.msg.removesuffix(' at')}"
        raise BadData(found, expected="one JSON object", setting=setting) from None
    except RecursionError:
        found = f"{place}: invalid JSON: nested too deeply"
        raise BadData(found, expected="one JSON object", setting=setting) from None
    except ValueError as error:  # a number of more digits than Python reads
        found = f"{place}: invalid JSON: {str(error).partition(';')[0]}"
        raise BadData(found, expected="one JSON object", setting=setting) from None
    if not isinstance(values, dict):
        found = f"{place}: {kind_of(values)}"
        raise BadData(found, expected="one JSON object on each line", setting=setting)
    return values
