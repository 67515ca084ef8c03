"""Owns the SHA-256 of a file while it is still being written: a thread reads what is there from the beginning.

hashlib lets other threads run, so hashing costs a processor and hardly any time. It must not know who writes.
"""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from typing import final

PIECE_BYTES = 1 << 20


@final
class TailDigest:
    """Digest of a growing file.

    Args:
        path: the file; read by its name once the first bytes are there.
        git_size: also make git's blob id of a file of that many bytes.
    """

    def __init__(self, path: Path, *, git_size: int | None = None) -> None:
        self._path = path
        self._sha256 = hashlib.sha256()
        self._sha1 = None if git_size is None else hashlib.sha1(b"blob %d\0" % git_size, usedforsecurity=False)
        self._changed = threading.Condition()
        self._allowed = 0
        self._read = 0
        self._closed = False
        self._error: OSError | None = None
        self._thread: threading.Thread | None = None

    def allow(self, position: int) -> None:
        """Every byte before ``position`` is there and will not change."""
        with self._changed:
            if position <= self._allowed:
                return
            self._allowed = position
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="transfer-digest", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def reached(self, position: int, seconds: float) -> bool:
        """Wait at most ``seconds`` for the first ``position`` bytes to be read; whether they are.

        Raises:
            OSError: the file cannot be read.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._read >= position or self._error is not None, seconds)
            if self._error is not None:
                raise self._error
            return self._read >= position

    def close(self) -> None:
        """Read no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def sha256(self) -> str:
        """Hex digest of what was read."""
        return self._sha256.hexdigest()

    @property
    def git_sha1(self) -> str:
        """Git's blob id, empty unless it was asked for."""
        return "" if self._sha1 is None else self._sha1.hexdigest()

    def _run(self) -> None:
        try:
            with self._path.open("rb", buffering=0) as file:
                buffer = memoryview(bytearray(PIECE_BYTES))
                while (count := self._next()) > 0:
                    got = file.readinto(buffer[:count]) or 0
                    if got == 0:
                        raise OSError(f"{self._path.name} is shorter than what was written")
                    self._sha256.update(buffer[:got])
                    if self._sha1 is not None:
                        self._sha1.update(buffer[:got])
                    with self._changed:
                        self._read += got
                        self._changed.notify_all()
        except OSError as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _next(self) -> int:
        """Bytes to read next; 0 to end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._allowed > self._read)
            return 0 if self._closed else min(PIECE_BYTES, self._allowed - self._read)
