"""Owns a file that is coming into being: its bytes, which of them are there, and who works on it.

``partial/<key>/`` holds ``data``, ``state.json`` (durable: written after the data it speaks of is) and
``positions`` (how far each part is, right after each write: it survives a kill, not a power cut, and counts
only while the machine runs on). Its owner has claimed it (``claims``) and beats. This file must not know where
bytes come from.
"""

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from app_trainer_sdk.files import json_bytes, read_json, remove_tree, sync_directory, sync_file
from app_trainer_sdk.owner import BEAT_SECONDS, HEARTBEAT, boot_id
from app_trainer_sdk.transfers.faults import Abandoned
from app_trainer_sdk.transfers.space import free_bytes

DATA, STATE, POSITIONS, WRONG = "data", "state.json", "positions", "wrong"
_POSITION = struct.Struct("<Q")


class Lost(Exception):  # noqa: N818 - not an error of ours
    """Somebody took the file over, since this process had not been heard of."""


@dataclass
class State:
    """What is there of a file.

    Attributes:
        size: of the whole file.
        part_bytes: of each part but the last.
        done: bytes there of each part, from its beginning.
        etags: by shown URL, of the mirrors the bytes came from.
    """

    size: int
    part_bytes: int
    done: list[int]
    etags: dict[str, str | None] = field(default_factory=dict)


@final
class Partial:
    """One file in the making, owned by this process."""

    def __init__(self, folder: Path, free: Path) -> None:
        self._folder = folder
        self._free = free
        self._beat_at = time.monotonic()
        self._ended = threading.Event()
        self._lost = False
        threading.Thread(target=self._beat, name="transfer-heartbeat", daemon=True).start()

    @property
    def data(self) -> Path:
        """Where the bytes are."""
        return self._folder / DATA

    @property
    def positions(self) -> Path:
        """How far each part is."""
        return self._folder / POSITIONS

    def check_owned(self) -> None:
        """Cheap; before each write.

        Raises:
            Lost: another process owns the file now.
        """
        if time.monotonic() - self._beat_at > 2 * BEAT_SECONDS:  # this process was held up: look again
            self._touch()
        if self._lost:
            raise Lost

    def load(self) -> State | None:
        """What an earlier process left, None when it is nothing that can be gone on with."""
        try:
            document: Any = read_json(self._folder / STATE)
            state = State(
                int(document["size"]), int(document["part_bytes"]), [int(each) for each in document["done"]],
                dict(document["etags"]),
            )  # fmt: skip
            lengths = part_lengths(state.size, state.part_bytes)
            if document["boot"] == boot_id():
                state.done = _further(state.done, self._folder / POSITIONS)
            whole = len(state.done) == len(lengths) and self.data.stat().st_size == state.size
            return (
                state if whole and all(0 <= a <= b for a, b in zip(state.done, lengths, strict=True)) else None
            )
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
            return None

    def begin(self, state: State, *, keep: bool) -> None:
        """Make room for the file, or go on with what was loaded; with ``keep`` a later process can, too."""
        try:
            with self.data.open("ab") as file:
                file.truncate(state.size)
            (self._folder / POSITIONS).write_bytes(b"".join(_POSITION.pack(done) for done in state.done))
        except FileNotFoundError:
            raise Lost from None
        if keep:
            self.save(state)

    def open_writer(self, state: State, index: int) -> PartWriter:
        """What one request writes part ``index`` through."""
        return PartWriter(self, state, index)

    def save(self, state: State) -> None:
        """Make durable what is there: the data first, then what is said of it."""
        document = {
            "size": state.size, "part_bytes": state.part_bytes, "done": list(state.done),
            "etags": dict(state.etags), "boot": boot_id(),
        }  # fmt: skip
        beside = self._folder / f".{STATE}.tmp"  # made here: no folder must come into being that was taken over
        with contextlib.suppress(FileNotFoundError):
            sync_file(self.data)
            beside.write_bytes(json_bytes(document))
            sync_file(beside)
            beside.replace(self._folder / STATE)
            sync_directory(self._folder)

    def discard(self) -> None:
        """Start again from nothing. Whoever still writes to the old file writes to no name."""
        for name in (DATA, STATE, POSITIONS):
            (self._folder / name).unlink(missing_ok=True)

    def rewind(self, index: int) -> None:
        """A part is begun anew."""
        with contextlib.suppress(FileNotFoundError), self.positions.open("r+b") as file:
            file.seek(index * _POSITION.size)
            file.write(_POSITION.pack(0))

    def empty(self) -> None:
        """Cut what is there, for a stream that begins again."""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self.data, 0)

    def quarantine(self) -> None:
        """Put away bytes that turned out wrong: they are never gone on with. Where they would take the place of
        the right ones, they go.
        """
        (self._folder / WRONG).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            if free_bytes(self._folder) >= self.data.stat().st_size:
                self.data.replace(self._folder / WRONG)
        self.discard()

    def finish(self, final: Path, *, read_only: bool = False) -> None:
        """Give the verified file its name, durably, and leave nothing beside."""
        self.check_owned()
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            sync_file(self.data)
            if read_only:
                self.data.chmod(0o444)
            self.data.replace(final)
        except FileNotFoundError:
            raise Lost from None
        sync_directory(final.parent)
        self._ended.set()
        remove_tree(self._folder)

    def release(self) -> None:
        """Leave the file for whoever comes next."""
        if self._ended.is_set():
            return
        self._ended.set()
        with contextlib.suppress(OSError):
            if any((self._folder / name).exists() for name in (STATE, WRONG)):
                self._folder.rename(self._free)
            else:
                remove_tree(self._folder)

    def _beat(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            self._touch()

    def _touch(self) -> None:
        try:
            os.utime(self._folder / HEARTBEAT)
            self._beat_at = time.monotonic()
        except FileNotFoundError:
            self._lost = not self._ended.is_set()
        except OSError:
            pass  # a file system that is away for a while


@final
class PartWriter:
    """Lets one request write one part. Once closed, by whoever, nothing is written any more: not even by a
    thread that hangs in a connection and comes back after the file has its final name.
    """

    def __init__(self, partial: Partial, state: State, index: int) -> None:
        self._partial = partial
        self._state = state
        self._index = index
        self._lock = threading.Lock()
        try:
            self._data = os.open(partial.data, os.O_WRONLY)
        except FileNotFoundError:
            raise Lost from None
        try:
            self._positions = os.open(partial.positions, os.O_WRONLY)
        except FileNotFoundError:
            os.close(self._data)
            raise Lost from None
        self._closed = False

    def write(self, piece: bytes | memoryview, offset: int, done: int) -> None:
        """Write bytes at ``offset`` of the file; the part is then ``done`` bytes far.

        Raises:
            Abandoned: the writer was closed.
            Lost: the file is somebody else's.
        """
        self._partial.check_owned()
        with self._lock:
            if self._closed:
                raise Abandoned
            written = 0
            while written < len(piece):
                written += os.pwrite(self._data, memoryview(piece)[written:], offset + written)
            os.pwrite(self._positions, _POSITION.pack(done), self._index * _POSITION.size)
            self._state.done[self._index] = done

    def close(self) -> None:
        """Write no more."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._data)
                os.close(self._positions)


def part_lengths(size: int, part_bytes: int) -> list[int]:
    """Bytes of each part."""
    return [min(part_bytes, size - start) for start in range(0, size, part_bytes)]


def _further(done: Sequence[int], positions: Path) -> list[int]:
    """What is there by the last writes, where the machine ran on since."""
    try:
        said = [each[0] for each in _POSITION.iter_unpack(positions.read_bytes())]
    except (OSError, struct.error):
        return list(done)
    return [max(each) for each in zip(done, said, strict=True)] if len(said) == len(done) else list(done)
