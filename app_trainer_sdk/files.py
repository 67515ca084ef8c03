"""Owns how a file comes into being: whole or not at all, and as strict JSON.

It must not know what the files mean.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, final

READ_BYTES = 1 << 20


class Disk(Protocol):
    """What folders and files are made with; an argument, so that a test can make it fail."""

    def make(self, folder: Path) -> None:
        """Make a folder and those above it."""
        ...

    def write(self, path: Path, put: Callable[[Path], object]) -> None:
        """Let ``put`` write the file ``path``."""
        ...

    def sync(self, path: Path) -> None:
        """Make a file's bytes, or the names in a folder, durable."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name."""
        ...


@final
class RealDisk:
    """The disk there is."""

    def make(self, folder: Path) -> None:
        """Make a folder and those above it."""
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: Path, put: Callable[[Path], object]) -> None:
        """Let ``put`` write the file ``path``."""
        put(path)

    def sync(self, path: Path) -> None:
        """Make a file's bytes, or the names in a folder, durable."""
        sync_file(path)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file or folder another name."""
        source.rename(target)


def write_atomic(path: Path, data: bytes, *, lasting: bool = True) -> None:
    """Write beside, fsync, rename, fsync the directory: readers see the old file or the new one.

    Args:
        path: the file.
        data: all of it.
        lasting: whether it must outlive a power cut; what each start writes anew need not wait for the disk.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            if lasting:
                os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if lasting:
        sync_directory(path.parent)


def write_json(path: Path, document: Any, *, lasting: bool = True) -> None:
    """Write strict, indented JSON atomically, as :func:`write_atomic`; non-finite numbers become null."""
    write_atomic(path, json_bytes(document), lasting=lasting)


def json_bytes(document: Any) -> bytes:
    """Strict, indented JSON; non-finite numbers become null."""
    text = json.dumps(finite(document), indent=2, ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def read_json(path: Path) -> Any:
    """Parse a JSON file."""
    return json.loads(path.read_bytes())


def json_object(body: bytes) -> dict[str, Any]:
    """What somebody else sent, when it is a JSON object; empty for anything else."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a JSON-lines file, none when it is not there; what a kill cut off is passed over."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


def append_whole_line(path: Path, line: bytes, *, sync: bool) -> None:
    """Append a whole line or nothing."""
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            if sync:
                os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


def cut_torn_line(path: Path) -> None:
    """Drop a last line that a kill cut off: nobody was told of it, and the next one must not join it."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256_file(path: Path, check: Callable[[], None] = lambda: None) -> str:
    """Hex digest of a file, read in pieces; between them ``check`` may raise."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            check()
            digest.update(piece)
    return digest.hexdigest()


def sha256_tree(folder: Path) -> tuple[str, int]:
    """Digest over names and contents of every file below ``folder``, and their total bytes."""
    digest = hashlib.sha256()
    total = 0
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        digest.update(f"{path.relative_to(folder).as_posix()}\0{sha256_file(path)}\n".encode())
        total += path.stat().st_size
    return digest.hexdigest(), total


def remove_tree(path: Path) -> None:
    """Remove a directory if it is there."""
    shutil.rmtree(path, ignore_errors=True)


def finite(value: Any) -> Any:
    """A copy of a JSON value with every NaN and infinity as None, and scalars of numpy or torch as numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [finite(each) for each in value]
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        return finite(value.item())
    return value
