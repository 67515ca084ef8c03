"""Owns what is known of a file before it is uploaded: size, digest, and the digests of its parts.

Read once, in pieces, before anything is asked. It must not know where the file goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from app_trainer_sdk.errors import UploadFailed
from app_trainer_sdk.quantities import MIB

#: What an upload is part of: what is handed over, a checkpoint, or the run's own rows.
Kind = Literal["artifact", "checkpoint", "rows"]
PART_BYTES = 16 * MIB
#: S3 takes so many parts of one object.
MOST_PARTS = 10_000
PIECE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Part:
    """Some bytes of a file: ``number`` counts from 1."""

    number: int
    begin: int
    size: int
    sha256: str


@dataclass(frozen=True)
class Outgoing:
    """A file as it is asked for.

    Attributes:
        kind: what it is part of.
        name: of the artifact or checkpoint.
        path: the file's name in that.
        source: where it lies.
        size: bytes.
        sha256: hex digest.
        part_bytes: size of its parts, all but the last.
        part_digests: SHA-256 of each part.
        md5: hex digest, where it was asked for.
        needs: checkpoints without which this one is not whole, such as the best one.
    """

    kind: Kind
    name: str
    path: str
    source: Path
    size: int
    sha256: str
    part_bytes: int
    part_digests: tuple[str, ...]
    md5: str = ""
    needs: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """What a receiver is told."""
        told: dict[str, Any] = {
            "kind": self.kind, "name": self.name, "path": self.path, "size": self.size, "sha256": self.sha256,
            "part_bytes": self.part_bytes,
        }  # fmt: skip
        return {**told, "needs": list(self.needs)} if self.needs else told

    def whole(self) -> Part:
        """All of it as one part."""
        return Part(1, 0, self.size, self.sha256)

    def parts(self) -> list[Part]:
        """Its parts in order."""
        size = self.part_bytes
        return [
            Part(index + 1, index * size, min(size, self.size - index * size), digest)
            for index, digest in enumerate(self.part_digests)
        ]


def part_size(size: int, least: int = PART_BYTES) -> int:
    """Bytes of a part of a file of ``size`` bytes: no more parts than S3 takes, then in whole mebibytes."""
    return least if size <= least * MOST_PARTS else -(-size // MOST_PARTS // MIB) * MIB


def examine(
    source: Path, *, kind: Kind, name: str, path: str, check: Callable[[], None], part_bytes: int = PART_BYTES,
    md5: bool = False, needs: tuple[str, ...] = (),
) -> Outgoing:  # fmt: skip
    """Read a file for its size and digests.

    Raises:
        UploadFailed: it cannot be read, or it changes while it is.
    """
    try:
        size = source.stat().st_size
        part = part_size(size, part_bytes)
        whole, other = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        digests, read = [], 0
        with source.open("rb") as file:
            for length in [part] * (size // part) + [size % part] * (size % part > 0) or [0]:
                one = whole if length == size else hashlib.sha256()
                for piece in pieces(file, length):
                    check()
                    one.update(piece)
                    read += len(piece)
                    if one is not whole:
                        whole.update(piece)
                    if md5:
                        other.update(piece)
                digests.append(one.hexdigest())
            if read != size or file.read(1):
                raise OSError("its size changes")
    except OSError as error:
        raise UploadFailed(
            f"{name}/{path} cannot be read: {error.strerror or error}", expected="a file that stays"
        ) from error
    told = other.hexdigest() if md5 else ""
    return Outgoing(kind, name, path, source, size, whole.hexdigest(), part, tuple(digests), told, needs)


def pieces(file: Any, length: int) -> Iterator[bytes]:
    """The next ``length`` bytes of a file, as far as there are so many."""
    while length and (piece := file.read(min(PIECE_BYTES, length))):
        length -= len(piece)
        yield piece
