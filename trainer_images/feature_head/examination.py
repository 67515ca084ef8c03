"""Owns what is told about the data before anything is loaded: rows, classes, leaks, fingerprint.

It must not know features or torch. Whether a picture can be decoded is told by the phase ``features``.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable

from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import JSON, Examination
from trainer_images.feature_head.rows import SPLITS, Row
from trainer_images.feature_head.splits import Splits, class_names, leaks, read_splits

#: Classes named with their rows in the report; a thousand would bury it.
SHOWN = 20


def examine(run: Run) -> Examination:
    """Read every row, decide the splits, map the classes and count what leaks.

    Raises:
        BadData: a row cannot be read, or a held-out class is not trained.
    """
    splits, ignored = read_splits(run)
    names = class_names(splits)
    counts = Counter(row.label for row in splits["train"])
    facts: dict[str, JSON] = {
        "rows": {name: len(splits[name]) for name in SPLITS},
        "classes": len(names),
        "training_rows_of_class": {name: counts[name] for name in names[:SHOWN]},
        "groups": len({row.group for name in SPLITS for row in splits[name]}),
        "leaks": leaks(splits),
        "ignored": dict(ignored),
    }
    return Examination(rows=len(splits["train"]), fingerprint=fingerprint(splits), facts=facts)


def fingerprint(splits: Splits) -> str:
    """A digest of the rows used, in order, with their classes and splits."""
    return _digest([name, row.digest, row.label] for name in SPLITS for row in splits[name])


def contents(splits: Splits) -> dict[str, Row]:
    """One row for each different content, by digest and in the order in which features are stored."""
    rows = {row.digest: row for name in SPLITS for row in splits[name]}
    return {row.digest: row for row in sorted(rows.values(), key=_extraction_order)}


def contents_digest(rows: Iterable[str]) -> str:
    """A digest of what is extracted. Classes and splits are not in it: they move no feature."""
    return _digest([digest] for digest in rows)


def _extraction_order(row: Row) -> tuple[int, str]:
    """Texts of like length beside each other, since a batch is padded to its longest."""
    return len(row.content) if isinstance(row.content, str) else 0, row.digest


def _digest(lines: Iterable[list[str]]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(json.dumps(line, ensure_ascii=True).encode() + b"\n")
    return digest.hexdigest()
