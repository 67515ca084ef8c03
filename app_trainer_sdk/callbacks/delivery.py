"""Owns the record on disk of which events were heard, and with it which were not.

``attempts/<n>/delivered.jsonl`` has a line for each event that is settled. What was made and is not settled is
sent by the next start or by ``app-trainer events flush``. This file must not know how events are sent.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Literal

from app_trainer_sdk.events import Event, read_events, read_terminal
from app_trainer_sdk.files import read_lines
from app_trainer_sdk.paths import JobDirectory

LOG = logging.getLogger(__name__)

DELIVERED = "delivered.jsonl"
Settled = Literal["heard", "refused", "fenced"]


class DeliveryRecord:
    """What became of each event of a job.

    Args:
        layout: the job's directory.
    """

    def __init__(self, layout: JobDirectory) -> None:
        self._layout = layout

    def settle(self, event: Event, how: Settled, status: int) -> None:
        """Write down that an event needs no further try; one that is lost here is only sent twice."""
        who = {name: event.document.get(name) for name in ("seq", "instance")}
        line = json.dumps({**who, "how": how, "status": status}).encode() + b"\n"
        try:
            with (self._folder(event) / DELIVERED).open("ab") as file:
                file.write(line)
                file.flush()
                if not event.replaceable:
                    os.fsync(file.fileno())
        except OSError as error:
            LOG.warning("it is not kept that event %s was %s: %s", event.id, how, error)

    def begin(self, attempt: int) -> None:
        """Say that an attempt has somebody who is to hear of it: only then a later start tells what is left."""
        with contextlib.suppress(OSError):  # of a full disk the run will tell
            (self._layout.attempt(attempt) / DELIVERED).touch()

    def waiting(self, attempt: int) -> list[Event]:
        """Events of an attempt that nobody heard, in order."""
        return waiting_in(self._layout.attempt(attempt))

    def backlog(self, *, everything: bool = False) -> list[Event]:
        """Events that nobody heard, of all attempts that had a receiver, or of all there are.

        Once an attempt was heard nothing is said of those before it: the receiver knows better by now.
        """
        folders = (self._layout.root / "attempts").glob("*")
        begun = (each for each in folders if everything or (each / DELIVERED).exists())
        waiting: list[Event] = []
        for number in sorted((int(each.name) for each in begun if each.name.isdecimal()), reverse=True):
            waiting = self.waiting(number) + waiting
            if any(line.get("how") == "heard" for line in read_lines(self._layout.attempt(number) / DELIVERED)):
                break
        return waiting

    def heard(self) -> int:
        """How many events were heard, of all attempts."""
        paths = (self._layout.root / "attempts").glob(f"*/{DELIVERED}")
        return sum(line.get("how") == "heard" for path in paths for line in read_lines(path))

    def _folder(self, event: Event) -> Path:
        return self._layout.attempt(int(event.document["attempt"]))


def waiting_in(folder: Path) -> list[Event]:
    """Events in an attempt's folder that nobody heard, in order; of progress only the last.

    After the terminal event was heard nothing of an attempt is said any more, and nothing of a process that was
    fenced.
    """
    lines = read_lines(folder / DELIVERED)
    settled = {line.get("seq"): line.get("how") for line in lines}
    fenced = {line.get("instance") for line in lines if line.get("how") == "fenced"}
    terminal = read_terminal(folder)
    if terminal is not None and settled.get(_sequence(terminal)) == "heard":
        return []
    if terminal is not None and terminal.document.get("instance") in fenced:
        return []
    speaking = [event for event in read_events(folder) if event.document.get("instance") not in fenced]
    events = [event for event in speaking if not event.terminal]
    lifecycle = [event for event in events if not event.replaceable and _sequence(event) not in settled]
    last = [event for event in events if event.replaceable][-1:]
    newest = max((number for number in settled if isinstance(number, int)), default=0)
    progress = [event for event in last if _sequence(event) > newest]
    waiting = sorted([*lifecycle, *progress], key=_sequence)
    return [*waiting, terminal] if terminal is not None else waiting


def _sequence(event: Event) -> int:
    return int(event.document["seq"])
