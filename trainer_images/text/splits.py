"""Owns which row belongs to which split, and the count of what leaks from one split into another.

A split follows from the rows and the seed alone. It must not know files, tokens or torch.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from app_trainer_sdk.errors import BadData
from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import JSON
from trainer_images.text.hyperparameters import TextHyperparameters
from trainer_images.text.rows import Row, read_rows

SPLITS = ("train", "validation", "test")
HELD_OUT = SPLITS[1:]
Splits = Mapping[str, Sequence[Row]]


def split_rows(run: Run) -> dict[str, list[Row]]:
    """The rows of each split: the inputs given by name, and shares of the dataset for the others.

    Raises:
        BadData: a row cannot be read, a field that decides the split is missing, or no row is left to train on.
    """
    rows = read_rows(run, "dataset")
    given = {name: read_rows(run, name) for name in HELD_OUT if name in run.inputs}
    settings = run.settings
    shares = {name: getattr(settings, f"{name}_share") for name in HELD_OUT if name not in given}
    counts = {name: round(share * len(rows)) for name, share in shares.items()}
    if settings.split_time_field:
        splits = _by_time(rows, counts, settings.split_time_field)
    else:
        splits = _by_group(rows, counts, settings)
    splits.update(given)
    if not splits["train"]:
        raise BadData(
            f"none of {len(rows)} rows is left to train on: {sum(map(len, splits.values()))} are held out",
            expected="a smaller share, or more groups",
            setting="/hyperparameters/validation_share",
        )
    return splits


def prompt_key(row: Row) -> str:
    """The prompt before the first trained answer, without case and spacing: what makes two rows alike."""
    return _text_key(row, range(row.trained[0]))


def pair_key(row: Row) -> str:
    """The whole conversation, without case and spacing."""
    return _text_key(row, range(len(row.messages)))


def group_key(row: Row, settings: TextHyperparameters) -> str:
    """What keeps rows in one split: the group field's value, or the prompt.

    Raises:
        BadData: the row has no such field.
    """
    if not settings.split_group_field:
        return prompt_key(row)
    value = _named_value(row, settings.split_group_field, "split_group_field")
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def leaks(splits: Splits, settings: TextHyperparameters) -> JSON:
    """For each held-out split, how many of its rows could be known from training, and by what.

    Returns:
        ``{"validation": {"rows": 49, "same_group": 0, "same_prompt": 0, "same_pair": 0}, ...}``.
    """
    checks = {"same_prompt": prompt_key, "same_pair": pair_key}
    if settings.split_group_field:
        checks["same_group"] = lambda row: group_key(row, settings)
    seen = {name: set(map(key, splits["train"])) for name, key in checks.items()}
    return {
        split: {"rows": len(splits.get(split, ()))}
        | {name: sum(key(row) in seen[name] for row in splits.get(split, ())) for name, key in checks.items()}
        for split in HELD_OUT
    }


def _by_group(
    rows: Sequence[Row], counts: Mapping[str, int], settings: TextHyperparameters
) -> dict[str, list[Row]]:
    """Whole groups in the order of their hashes, held out as long as they fit; the rest trains.

    Counting rows keeps small datasets whole, which a threshold on the hash would not.
    """
    members: dict[str, int] = defaultdict(int)
    keys = [group_key(row, settings) for row in rows]
    for key in keys:
        members[key] += 1
    room = dict(counts)
    split_of: dict[str, str] = {}
    for key in sorted(members, key=lambda key: _hash(settings.seed, key)):
        fitting = (name for name, left in room.items() if members[key] <= left)
        split_of[key] = name = next(fitting, "train")
        if name != "train":
            room[name] -= members[key]
    splits: dict[str, list[Row]] = {name: [] for name in SPLITS}
    for row, key in zip(rows, keys, strict=True):
        splits[split_of[key]].append(row)
    return splits


def _by_time(rows: Sequence[Row], counts: Mapping[str, int], field: str) -> dict[str, list[Row]]:
    """The oldest rows train, the newest test. Rows of one moment stay together, on the older side."""
    moment = {id(row): _moment(row, field) for row in rows}
    ordered = sorted(rows, key=lambda row: moment[id(row)])
    test_from = len(rows) - counts.get("test", 0)
    validation_from = test_from - counts.get("validation", 0)
    splits: dict[str, list[Row]] = {name: [] for name in SPLITS}
    position = 0
    for _, same in groupby(ordered, key=lambda row: moment[id(row)]):
        name = "test" if position >= test_from else "validation" if position >= validation_from else "train"
        together = list(same)
        splits[name] += together
        position += len(together)
    return splits


def _moment(row: Row, field: str) -> float:
    """Seconds for a date in ISO 8601 (without a zone it is UTC), or the number itself."""
    value = _named_value(row, field, "split_time_field")
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    try:
        when = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise BadData(
            f"{row.place}: field {field!r} is {value!r}",
            expected="a number, or a date such as 2024-05-31 or 2024-05-31T12:00:00Z",
            setting="/hyperparameters/split_time_field",
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


def _named_value(row: Row, field: str, setting: str) -> Any:
    if row.values.get(field) is None:
        raise BadData(
            f"{row.place}: no field {field!r}, which decides the row's split",
            expected="a value in every row",
            setting=f"/hyperparameters/{setting}",
        )
    return row.values[field]


def _text_key(row: Row, indices: Sequence[int]) -> str:
    parts = [f"{row.messages[index]['role']}\n{row.messages[index]['content']}" for index in indices]
    return "\n\n".join(" ".join(part.casefold().split()) for part in parts)


def _hash(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed}/{key}".encode(errors="surrogatepass")).digest()
