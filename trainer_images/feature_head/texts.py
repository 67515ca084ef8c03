"""Owns what a labelled text is: an object becomes a row, or an error that names file, line and field.

It must not know how lines are read, splits, pictures or torch.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import Any

from app_trainer_sdk import jsonl
from app_trainer_sdk.errors import BadData
from app_trainer_sdk.handle import Run
from trainer_images.feature_head.rows import Found, Row


def read_texts(run: Run, name: str) -> Found:
    """All rows of the input ``name``, in file order.

    Raises:
        BadData: a line is not a row, or there is none.
        BadJob: the input is a folder and does not say which file.
        InputMissing: there is no such file.
    """
    row = partial(_row, settings=run.settings)
    rows = jsonl.read_rows(run, name, row, file=run.settings.dataset_file, setting="dataset_file")
    return Found({"train": rows})


def _row(values: dict[str, Any], place: str, *, settings: Any) -> Row:
    text = _text(values, place, settings.text_field)
    group = " ".join(text.casefold().split())
    if settings.split_group_field:
        value = _field(values, place, settings.split_group_field, "split_group_field")
        group = json.dumps(value, sort_keys=True, ensure_ascii=True)
    label = _label(values, place, settings.label_field)
    return Row(place, label, text, hashlib.sha256(text.encode()).hexdigest(), group)


def _text(values: dict[str, Any], place: str, field: str) -> str:
    text = _field(values, place, field, "text_field")
    if not isinstance(text, str) or not text.strip():
        found = "empty" if isinstance(text, str) else jsonl.kind_of(text)
        raise BadData(f"{place}: field {field!r} is {found}", expected="a text", setting=place)
    jsonl.check_characters(text, f"field {field!r}", place)
    return text


def _label(values: dict[str, Any], place: str, field: str) -> str:
    label = _field(values, place, field, "label_field")
    if isinstance(label, bool) or not isinstance(label, str | int) or not str(label).strip():
        raise BadData(
            f"{place}: field {field!r} is {label!r}", expected="a string or a whole number", setting=place
        )
    return str(label)


def _field(values: dict[str, Any], place: str, field: str, name: str) -> Any:
    if values.get(field) is None:
        raise jsonl.missing_field(values, field, place, expected="a value in every row", setting=name)
    return values[field]
