"""Owns what is told about the data before anything is loaded: rows of each split, leaks, fingerprint.

It must not know tokens or torch: how long a row is in tokens is told by the phase ``tokens``.
"""

from __future__ import annotations

import hashlib
import json

from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import Examination
from trainer_images.text.splits import SPLITS, Splits, group_key, leaks, split_rows


def examine(run: Run) -> Examination:
    """Read every row, decide the splits and count what leaks between them.

    Returns:
        the number of training rows, a digest of all rows by split, and facts for the report.

    Raises:
        BadData: a row cannot be read, or none is left to train on.
    """
    splits = split_rows(run)
    settings = run.settings
    facts = {
        "rows": {name: len(splits[name]) for name in SPLITS},
        "split_by": _rule(run),
        "groups": len({group_key(row, settings) for name in SPLITS for row in splits[name]}),
        "leaks": leaks(splits, settings),
    }
    return Examination(rows=len(splits["train"]), fingerprint=fingerprint(splits), facts=facts)


def fingerprint(splits: Splits) -> str:
    """A digest of the rows used, in order, and of the split each is in."""
    digest = hashlib.sha256()
    for name in SPLITS:
        for row in splits[name]:
            line = json.dumps([name, row.messages, row.first_trained], ensure_ascii=True, sort_keys=True)
            digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _rule(run: Run) -> str:
    settings = run.settings
    if settings.split_time_field:
        return f"time in the field {settings.split_time_field!r}"
    return f"group in the field {settings.split_group_field!r}" if settings.split_group_field else "prompt"
