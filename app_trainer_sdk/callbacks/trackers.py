"""Owns experiment trackers: each in a process of its own, which reads what the run wrote, so that a slow, sick
or crashing one cannot touch the run.

A tracker is a class with three methods, found by its name in the entry-point group ``app_trainer_sdk.sinks`` or
as ``package.module:Class``. Its process follows ``events.jsonl`` of the attempt and ``metrics.jsonl``; it gets
none of the sender's secrets. This file must not know any particular tracker.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from app_trainer_sdk.errors import BadJob, did_you_mean
from app_trainer_sdk.events import ENDING_TYPES, EVENTS, Event
from app_trainer_sdk.paths import PREFIX, JobDirectory
from app_trainer_sdk.redaction import without_secret_variables

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LOG = logging.getLogger(__name__)

GROUP = "app_trainer_sdk.sinks"
VARIABLE = PREFIX + "SINKS"
POLL_SECONDS = 0.2
#: From the end of the run, or of the supervisor, to the end of a tracker that hangs.
GRACE_SECONDS = 10.0
#: For which the run waits for it; a control plane may get more.
MOST_SECONDS = 15.0
NICER = 5


class Tracker(Protocol):
    """What a tracker does. Whatever it raises ends its own process only."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Take an event, as in ``events.jsonl``."""
        ...

    def metric(self, line: Mapping[str, Any]) -> None:
        """Take an update, as in ``metrics.jsonl``."""
        ...

    def close(self) -> None:
        """The run has ended."""
        ...


class TrackerSink:
    """A sink whose events are read from their file by a tracker's own process.

    Args:
        name: the tracker.
        layout: the job's directory.
        attempt: whose events.
    """

    def __init__(self, name: str, layout: JobDirectory, attempt: int) -> None:
        self._name = name
        log = layout.attempt(attempt) / "logs" / f"sink-{name.replace('/', '-')}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        # What lies in the file now was told by earlier starts; the process itself would look too late.
        begin = layout.metrics.stat().st_size if layout.metrics.exists() else 0
        words = [name, str(layout.attempt(attempt) / EVENTS), str(layout.metrics), str(begin)]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "app_trainer_sdk.callbacks.trackers", *words],
                stdin=subprocess.PIPE, stdout=output, stderr=output,
                env=without_secret_variables(os.environ),
            )  # fmt: skip

    def send(self, event: Event) -> None:
        """The event lies in its file."""

    def acknowledged(self) -> float:
        """A tracker does not answer."""
        return math.inf

    def close(self, seconds: float) -> bool:
        """Let it read to the end, for at most ``seconds``. What it has not read is nobody's loss: True."""
        if self._process.stdin is not None:
            self._process.stdin.close()  # the end of the run
        try:
            code = self._process.wait(timeout=min(seconds, MOST_SECONDS))
            if code:
                LOG.warning("the tracker %s ended with status %d: see its log", self._name, code)
        except subprocess.TimeoutExpired:
            LOG.warning("the tracker %s did not end in time and was killed", self._name)
            self._process.kill()
            self._process.wait()
        return True

    def hurry(self, seconds: float) -> None:
        """A tracker never has long."""


def check_tracker(name: str, *, entries: Sequence[EntryPoint] | None = None) -> None:
    """Refuse a tracker that is not there. Nothing of it is imported: that is for its own process.

    Raises:
        BadJob: there is none of that name.
    """
    known = [each.name for each in (_installed() if entries is None else entries)]
    module, colon, _ = name.partition(":")
    if name in known or (colon and importlib.util.find_spec(module.partition(".")[0]) is not None):
        return
    raise BadJob(
        f"the sink {name!r} ({did_you_mean(name, [*known, 'stdout'])})",
        expected=f"stdout, a name in the entry points {GROUP!r}, or package.module:Class", setting=VARIABLE,
    )  # fmt: skip


def _installed() -> Sequence[EntryPoint]:
    from importlib.metadata import entry_points  # reads every distribution: only where a tracker is asked for

    return tuple(entry_points(group=GROUP))


def load_tracker(name: str) -> Callable[[], Tracker]:
    """The class of a tracker that was checked."""
    for entry in _installed():
        if entry.name == name:
            return cast(Callable[[], Tracker], entry.load())
    module, _, attribute = name.partition(":")
    return cast(Callable[[], Tracker], getattr(importlib.import_module(module), attribute))


def follow(tracker: Tracker, events: Path, metrics: Path, ended: threading.Event, *, begin: int = 0) -> None:
    """Hand a tracker every line, of metrics from the byte ``begin`` on, until the run has ended."""
    told, updates = _Tail(events), _Tail(metrics, begin)
    last = False
    while True:
        last = ended.is_set()
        for line in updates.lines():
            tracker.metric(line)
        for event in told.lines():
            tracker.event(event)
            last = last or event.get("type") in ENDING_TYPES
        if last:
            break
        ended.wait(POLL_SECONDS)
    for line in updates.lines():
        tracker.metric(line)
    tracker.close()


class _Tail:
    """Whole lines of a file as they are appended; a file cut shorter is read on from its new end."""

    def __init__(self, path: Path, begin: int = 0) -> None:
        self._path = path
        self._place = begin

    def lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            self._place = min(self._place, os.fstat(file.fileno()).st_size)
            file.seek(self._place)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._place += len(line)
                try:
                    document = json.loads(line)
                except ValueError:
                    continue  # the middle of a line: the file was cut and grew meanwhile
                if isinstance(document, dict):
                    yield document


def _end_with_the_run(ended: threading.Event) -> None:
    """The supervisor never writes to standard input: its end is that of the run, or of the supervisor."""
    while os.read(0, 1024):
        pass
    ended.set()
    timer = threading.Timer(GRACE_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()


def main(arguments: Sequence[str]) -> int:
    """Follow a run: the tracker's name, the events, the metrics and where to begin in them."""
    name, events, metrics, begin = arguments
    os.nice(NICER)
    ended = threading.Event()
    threading.Thread(target=_end_with_the_run, args=(ended,), daemon=True).start()
    follow(load_tracker(name)(), Path(events), Path(metrics), ended, begin=int(begin))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
