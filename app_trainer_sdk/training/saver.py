"""Owns saving behind training's back: one checkpoint at a time, written by a thread.

Training waits for the copy of its state and not for the disk; safetensors, SHA-256 and fsync release the
interpreter. An error is raised where training looks next, and never costs a checkpoint that was valid. This
file must not know what is saved.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

POLL_SECONDS = 0.05


class Saver:
    """Runs one piece of saving work at a time, in order."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin ``work``; waits for the one before it, so that at most one copy of the state is in memory.

        Raises:
            BaseException: what the one before it raised.
        """
        self.finish()
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint-saver", daemon=True)
        self._thread.start()

    def raise_if_failed(self) -> None:
        """Raise what a finished piece of work raised; returns at once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait for the work that is under way, and raise what it raised, or what ``check`` raises meanwhile."""
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(POLL_SECONDS)
            check()
        self._thread = None
        self.raise_if_failed()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - carried to the training thread, which raises it
            self._error = error
