"""Owns what a row is, whatever the backbone reads: its content, its class, and where it came from.

It must not know how texts or pictures are read, or torch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app_trainer_sdk.files import sha256_file

SPLITS = ("train", "validation", "test")
HELD_OUT = SPLITS[1:]


@dataclass(frozen=True)
class Row:
    """One labelled example.

    Attributes:
        place: where it stands, for messages: ``file:line``, or a path below the input.
        label: its class.
        content: what the backbone reads: a text, or the path of a picture.
        digest: SHA-256 of the content; equal contents share their features.
        group: rows of one group share a split.
    """

    place: str
    label: str
    content: str | Path
    digest: str
    group: str


@dataclass(frozen=True)
class Found:
    """What reading one input gave.

    Attributes:
        splits: rows by split; only ``train`` when the input says nothing of splits.
        ignored: files that are no rows, by reason.
    """

    splits: Mapping[str, Sequence[Row]]
    ignored: Mapping[str, int] = field(default_factory=dict)


def file_digest(path: Path) -> str:
    """SHA-256 of a file, computed once for each state of it: a run reads its index several times."""
    facts = path.stat()
    return _digest(path, facts.st_size, facts.st_mtime_ns)


@functools.cache
def _digest(path: Path, size: int, modified: int) -> str:
    return sha256_file(path)
