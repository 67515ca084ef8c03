"""Owns how results of phases lie in the cache, and the seal by which a file of features is known to be whole.

``features/<trainer>-<phase>-<digest>`` is a result, ``features/items/<name>-<digest>`` what one extractor made
of each item; a result that uses such features has an index that names their folder. This file must not know
what a phase computes, nor how tensors are written.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

from app_trainer_sdk.files import read_json

FOLDER, ITEMS = "features", "items"
INDEX = "features.json"
SUFFIX = ".safetensors"
#: The file's CRC-32, read with zeros in its own place: it stands in the header, among the metadata.
SEAL, UNSEALED = "file_crc32", "00000000"
_SEALED = re.compile(rb'"%s":"([0-9a-f]{8})"' % SEAL.encode())


def result_folder(cache: Path, name: str) -> Path:
    """Where the result of a phase is, or will be."""
    return cache / FOLDER / name


def items_folder(cache: Path, name: str) -> Path:
    """Where the features of one extractor are, or will be."""
    return cache / FOLDER / ITEMS / name


def items_of(cache: Path, result: Path) -> Path | None:
    """The folder of the items that a result uses; None for one without, and for what is no result."""
    try:
        folder = Path(read_json(result / INDEX)["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return items_folder(cache, folder.name)


def seal(data: bytes) -> bytes:
    """A safetensors file that was written with ``{SEAL: UNSEALED}`` as metadata, sealed."""
    start, end, _ = _found(data)
    return b"%s%08x%s" % (data[:start], zlib.crc32(data), data[end:])


def is_whole(path: Path) -> bool:
    """Whether a file is there and its bytes are those that were written."""
    try:
        data = path.read_bytes()
        start, end, sealed = _found(data)
    except (OSError, ValueError):
        return False
    total = zlib.crc32(UNSEALED.encode(), zlib.crc32(data[:start]))
    return zlib.crc32(memoryview(data)[end:], total) == sealed


def _found(data: bytes) -> tuple[int, int, int]:
    """Where the seal is, and what it says."""
    header = 8 + int.from_bytes(data[:8], "little")
    found = _SEALED.search(data, 8, header)
    if found is None:
        raise ValueError("no seal")
    return *found.span(1), int(found[1], 16)
