"""Owns uploading checkpoints beside training, newest first, in a thread of its own.

What is to be sent is linked aside at once, so that retention takes nothing away from under it. A checkpoint
that is being sent is finished before a newer one begins, since else none might ever be whole; those in between
are passed over. Its manifest goes last: without it nobody takes it for a checkpoint. This file must not know
when a run ends.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from app_trainer_sdk.checkpoints import IDENTITY, MANIFEST, STATE, find_checkpoints, inspect_checkpoint
from app_trainer_sdk.errors import StopRequested
from app_trainer_sdk.files import read_json, remove_tree
from app_trainer_sdk.outputs.sender import Sender
from app_trainer_sdk.transfers.progress import NoListener

POLL_SECONDS = 0.1
#: Rows of the run so far go along with a checkpoint, in a folder of it that no manifest names.
ROWS, ROW_FILES = "rows", ("metrics.jsonl", "evaluations.jsonl", "phases.jsonl")
#: Of this thread and those that it begins: training has the processors first.
NICE = 19


@dataclass(frozen=True)
class _Due:
    """A checkpoint to be sent, and the best one before it where that is another."""

    folder: Path
    name: str
    best: tuple[Path, str] | None


class _Overtaken(BaseException):
    """A newer checkpoint is all that counts now."""


@final
class CheckpointUploads:
    """Sends the checkpoints that it is told of.

    Args:
        sender: with what.
        aside: a folder of its own, on the file system of the checkpoints.
        rows: the folder where the run's rows lie.
    """

    def __init__(self, sender: Sender, aside: Path, *, rows: Path) -> None:
        self._sender = sender
        self._aside = aside
        self._rows = rows
        self._changed = threading.Condition()
        self._due: _Due | None = None
        self._busy = False
        self._hurry = self._ended = False
        self._stored: set[str] = set()
        self._told: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.bytes = 0
        remove_tree(aside)

    def saved(self, folder: Path) -> None:
        """A checkpoint is whole on the disk; returns at once."""
        best = _best_beside(folder)
        there = best is not None and best.name in self._stored  # named all the same: a resume needs both
        linked = self._linked(folder)
        if linked != folder:
            self._copy_rows(linked / ROWS)
        held = None if best is None else (best if there else self._linked(best), best.name)
        due = _Due(linked, folder.name, held)
        with self._changed:
            if self._ended:
                return
            self._due = due
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="checkpoint-upload", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def news(self) -> list[dict[str, Any] | BaseException]:
        """Facts of checkpoints that are stored since the last call, and errors."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._told.get_nowait())
        return found

    def finish(self, go_on: Callable[[], bool]) -> bool:
        """Send the newest as fast as can be, while ``go_on()``; whether nothing is left."""
        with self._changed:
            self._sender = self._sender.in_a_hurry()
            self._hurry = True
        while go_on():
            with self._changed:
                if not self._busy and self._due is None:
                    return True
                self._changed.wait(POLL_SECONDS)
        return False

    def drop(self, seconds: float = 1.0) -> None:
        """Send nothing more; waits shortly for the thread."""
        with self._changed:
            self._ended, self._due = True, None
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)
        remove_tree(self._aside)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while (due := self._next()) is not None:
            try:
                began = time.monotonic()
                self._send(due, began)
            except _Overtaken:
                pass
            except (Exception, StopRequested) as error:  # noqa: BLE001 - told; the next one may go
                self._told.put(error)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
            self._tidy()

    def _next(self) -> _Due | None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._due is not None)
            due, self._due = self._due, None
            self._busy = due is not None and not self._ended
            return None if self._ended else due

    def _check(self) -> None:
        with self._changed:
            if self._ended or (self._hurry and self._due is not None):
                raise _Overtaken

    def _send(self, due: _Due, began: float) -> None:
        if due.best is not None and due.best[1] not in self._stored:
            self._send_one(*due.best, needs=())
        size = self._send_one(due.folder, due.name, needs=() if due.best is None else (due.best[1],))
        manifest = read_json(due.folder / MANIFEST)
        identity = manifest["files"].get(IDENTITY, {}).get("sha256", "")
        self._told.put(
            {
                "name": due.name, "step": manifest["step"], "bytes": size, "stored": True,
                "seconds": time.monotonic() - began, "identity": f"sha256:{identity}",
            }
        )  # fmt: skip

    def _send_one(self, folder: Path, name: str, *, needs: tuple[str, ...]) -> int:
        size = self._sender.send("checkpoint", name, folder, check=self._check, told=NoListener(), needs=needs)
        if name not in self._stored:
            self._stored.add(name)
            self.bytes += size
        return size

    def _linked(self, folder: Path) -> Path:
        """A second name for each file, which costs nothing; where that is not to be had, the folder itself."""
        place = self._aside / folder.name
        try:
            place.mkdir(parents=True, exist_ok=True)
            for path in folder.iterdir():
                with contextlib.suppress(FileExistsError):
                    os.link(path, place / path.name)
        except OSError:
            return folder
        return place

    def _copy_rows(self, place: Path) -> None:
        """A copy: they grow. Without them a resume is whole, and its curves begin with it."""
        with contextlib.suppress(OSError):
            place.mkdir(exist_ok=True)
            for path in (self._rows / name for name in ROW_FILES):
                if path.is_file():
                    shutil.copyfile(path, place / path.name)

    def _tidy(self) -> None:
        """Give back what nothing waits for."""
        with self._changed:
            waiting = set() if self._due is None else {self._due.folder, *(self._due.best or ())[:1]}
            for each in find_checkpoints(self._aside):
                if each not in waiting:
                    remove_tree(each)


def _best_beside(folder: Path) -> Path | None:
    """The best checkpoint that a job must still have at its end, where it is another one."""
    try:
        step = read_json(folder / STATE)["driver"]["best"]["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if step is None:
        return None
    named = (each for each in find_checkpoints(folder.parent) if each.name.startswith(f"step-{step:08d}"))
    found = (inspect_checkpoint(each, digests=False) for each in named)
    newest = max((each for each in found if not each.problem), key=lambda each: each.number, default=None)
    return None if newest is None or newest.path == folder else newest.path
