"""Owns the reading of labelled texts: a line of JSONL becomes a row, or an error that names file and field.

It must not know splits, pictures or torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app_trainer_sdk.errors import BadData, BadJob
from app_trainer_sdk.handle import Run
from trainer_images.feature_head.rows import Found, Row


def read_texts(run: Run, name: str) -> Found:
    """All rows of the input ``name``, in file order.

    Raises:
        BadData: a line is not a row, or there is none.
        BadJob: the input is a folder and does not say which file.
        InputMissing: there is no such file.
    """
    path = _input_file(run, name)
    rows = [
        _row(line, f"{path.name}:{number}", run.settings)
        for number, line in run.track(_lines(path), f"read {name}")
    ]
    if not rows:
        raise BadData(
            f"{path.name}: no row", expected="at least one JSON object on a line", setting=f"/inputs/{name}"
        )
    return Found({"train": rows})


def _input_file(run: Run, name: str) -> Path:
    """The JSONL file of an input; in a folder the one the settings name, or the only one."""
    file = run.settings.dataset_file
    root = run.inputs.get(name)
    if root is not None and root.is_dir() and not file:
        found = sorted(path.name for path in root.glob("*.jsonl"))
        if len(found) != 1:
            raise BadJob(
                f"the folder of input {name!r} has {len(found)} .jsonl files: {', '.join(found[:5]) or 'none'}",
                expected="the file to read",
                setting="/hyperparameters/dataset_file",
            )
        file = found[0]
    return run.input_file(name, file)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their number from 1; blank ones are passed over, a byte-order mark is dropped."""
    with path.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            except UnicodeDecodeError as error:
                found = f"byte {raw[error.start]:#04x} at column {error.start + 1} is not UTF-8"
                raise BadData(f"{path.name}:{number}: {found}", expected="JSON in UTF-8") from None
            if line:
                yield number, line


def _row(line: str, place: str, settings: Any) -> Row:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        told = getattr(error, "msg", None) or type(error).__name__
        raise BadData(f"{place}: invalid JSON: {told}", expected="one JSON object") from None
    if not isinstance(values, dict):
        raise BadData(f"{place}: a {type(values).__name__}", expected="one JSON object on each line")
    text = _text(values, place, settings.text_field)
    group = " ".join(text.casefold().split())
    if settings.split_group_field:
        value = _field(values, place, settings.split_group_field, "split_group_field")
        group = json.dumps(value, sort_keys=True, ensure_ascii=True)
    label = _label(values, place, settings.label_field)
    return Row(place, label, text, hashlib.sha256(text.encode()).hexdigest(), group)


def _text(values: Mapping[str, Any], place: str, field: str) -> str:
    text = _field(values, place, field, "text_field")
    if not isinstance(text, str) or not text.strip():
        found = "empty" if isinstance(text, str) else f"a {type(text).__name__}"
        raise BadData(f"{place}: field {field!r} is {found}", expected="a text", setting=place)
    try:
        text.encode()  # JSON can say one half of a surrogate pair; no tokenizer takes it
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise BadData(
            f"{place}: field {field!r} has half a character, {half!a}", expected="whole ones", setting=place
        ) from None
    return text


def _label(values: Mapping[str, Any], place: str, field: str) -> str:
    label = _field(values, place, field, "label_field")
    if isinstance(label, bool) or not isinstance(label, str | int) or not str(label).strip():
        raise BadData(
            f"{place}: field {field!r} is {label!r}", expected="a string or a whole number", setting=place
        )
    return str(label)


def _field(values: Mapping[str, Any], place: str, field: str, name: str) -> Any:
    if values.get(field) is None:
        raise BadData(
            f"{place}: no field {field!r} among {', '.join(map(repr, list(values)[:8])) or 'none'}",
            expected="a value in every row",
            setting=f"/hyperparameters/{name}",
        )
    return values[field]
