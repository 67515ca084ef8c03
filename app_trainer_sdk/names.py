"""Owns which relative file names are safe to write below a folder. It must not know where they come from."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

#: The longest part of a path that common file systems take, in bytes.
PART_BYTES = 255
_DRIVE = re.compile(r"^[A-Za-z]:")


def unsafe_name(name: str) -> str:
    """Why ``name`` must not be written below a folder; empty when it may.

    One spelling for one file: ``a//b``, ``./a`` and ``a/`` are refused too, so that two names that differ are
    two files.
    """
    if not name:
        return "an empty name"
    if any(ord(character) < 32 for character in name):
        return "a control character in the name"
    if "\\" in name:
        return "a backslash in the name"
    if name.startswith("/") or _DRIVE.match(name):
        return "an absolute name"
    parts = name.split("/")
    if ".." in parts:
        return "a name that leaves its folder"
    if any(part in ("", ".") for part in parts):
        return "a name with an empty part"
    try:
        long = any(len(part.encode()) > PART_BYTES for part in parts)
    except UnicodeEncodeError:
        return "a name that is no text"
    return f"a part of the name over {PART_BYTES} bytes" if long else ""


def clash(names: Iterable[str]) -> str:
    """Two files that cannot lie side by side: the same name, or one below the other; empty without any."""
    files: set[str] = set()
    folders: set[str] = set()
    for name in names:
        above = {str(each) for each in PurePosixPath(name).parents} - {"."}
        if name in files:
            return f"{name!r} twice"
        if name in folders or above & files:
            return f"{name!r} both as a file and as a folder"
        files.add(name)
        folders |= above
    return ""
