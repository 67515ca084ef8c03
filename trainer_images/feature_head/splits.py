"""Owns which row belongs to which split, and the class map, which follows from the training split alone.

A split follows from the rows and the seed. It must not know how rows are read, or torch.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from app_trainer_sdk.errors import BadData
from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import JSON
from trainer_images.feature_head.pictures import read_pictures
from trainer_images.feature_head.rows import HELD_OUT, SPLITS, Found, Row
from trainer_images.feature_head.texts import read_texts

Splits = Mapping[str, Sequence[Row]]
READERS: Mapping[str, Callable[[Run, str], Found]] = {"texts": read_texts, "pictures": read_pictures}


def read_splits(run: Run) -> tuple[Splits, Mapping[str, int]]:
    """The rows of each split, and the files that are no rows, by reason.

    A held-out split is the input of its name, or what the dataset says, or a share of each class.

    Raises:
        BadData: a row cannot be read, none is left to train on, or a held-out class is not trained.
    """
    read = READERS[run.model.architecture["kind"]]
    found = read(run, "dataset")
    ignored = Counter(found.ignored)
    given: dict[str, Sequence[Row]] = {name: rows for name, rows in found.splits.items() if name in HELD_OUT}
    for name in HELD_OUT:
        if name in run.inputs:
            other = read(run, name)
            given[name] = other.splits["train"]
            ignored.update(other.ignored)
    splits = _share_out(found.splits.get("train", ()), run, [name for name in HELD_OUT if name not in given])
    splits |= given
    if not splits["train"]:
        total = sum(map(len, splits.values()))
        raise BadData(
            f"none of {total} rows is left to train on", expected="at least one", setting="/inputs/dataset"
        )
    class_names(splits)
    return splits, ignored


def class_names(splits: Splits) -> tuple[str, ...]:
    """The class map: names in order, from the training split alone.

    Raises:
        BadData: a held-out row has a class that no training row has, or there is only one class.
    """
    names = sorted({row.label for row in splits["train"]})
    known = set(names)
    for split in HELD_OUT:
        strange = [row for row in splits.get(split, ()) if row.label not in known]
        if strange:
            raise BadData(
                f"{strange[0].place}: the class {strange[0].label!r}, in {split} and not in train "
                f"({len(strange)} such rows)",
                expected=f"one of the {len(names)} classes of train: {_few(names)}",
                setting="the data of the split",
            )
    if len(names) < 2:
        raise BadData(
            f"the training split has one class, {_few(names)}",
            expected="at least two",
            setting="/inputs/dataset",
        )
    return tuple(names)


def leaks(splits: Splits) -> JSON:
    """For each held-out split its rows, and how many of them share their group with a training row."""
    trained = {row.group for row in splits["train"]}
    return {
        name: {
            "rows": len(splits.get(name, ())),
            "same_group": sum(row.group in trained for row in splits.get(name, ())),
        }
        for name in HELD_OUT
    }


def _share_out(rows: Sequence[Row], run: Run, names: Sequence[str]) -> dict[str, Sequence[Row]]:
    """Whole groups, class by class in the order of their hashes, as long as they fit; the rest trains.

    Class by class, so that each class keeps its share everywhere and no small one is lost to training.
    """
    members: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        members[row.group].append(row)
    by_class: dict[str, list[str]] = defaultdict(list)
    for group in sorted(members, key=lambda group: _hash(run.settings.seed, group)):
        by_class[members[group][0].label].append(group)
    split_of: dict[str, str] = {}
    for groups in by_class.values():
        total = sum(len(members[group]) for group in groups)
        room = {name: round(getattr(run.settings, f"{name}_share") * total) for name in names}
        for group in groups[:-1]:  # one group of each class trains, whatever the shares
            name = next((name for name, left in room.items() if len(members[group]) <= left), "train")
            split_of[group] = name
            if name != "train":
                room[name] -= len(members[group])
    splits: dict[str, list[Row]] = {name: [] for name in SPLITS}
    for row in rows:
        splits[split_of.get(row.group, "train")].append(row)
    return dict(splits)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")


def _hash(seed: int, key: str) -> bytes:
    return hashlib.sha256(f"{seed}/{key}".encode()).digest()
