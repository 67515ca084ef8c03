"""Owns the envelope of what is said to the control plane: one value, one id, at most 4 KiB, strict JSON.

Every event is appended to ``attempts/<n>/events.jsonl`` before anybody sends it. This file must not know
how events travel.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app_trainer_sdk.files import append_whole_line, cut_torn_line, finite, sync_directory, write_atomic
from app_trainer_sdk.redaction import redacted

LOG = logging.getLogger(__name__)

EVENT_BYTES = 4096
METRICS_IN_EVENT = 32
TERMINAL_TYPES = frozenset({"job.succeeded", "job.failed", "job.canceled"})
#: After one of these a start says nothing more; after an interruption another one goes on.
ENDING_TYPES = TERMINAL_TYPES | {"job.interrupted"}
EVENTS, TERMINAL = "events.jsonl", "terminal.json"


def utc_now() -> datetime:
    """The clock events are stamped with."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Event:
    """One thing said.

    Attributes:
        document: the envelope and its facts.
        body: the exact bytes that are stored and sent.
    """

    document: Mapping[str, Any]
    body: bytes

    @property
    def id(self) -> str:
        """``job.attempt.seq``: the idempotency key."""
        return str(self.document["id"])

    @property
    def type(self) -> str:
        """Such as ``job.progress``."""
        return str(self.document["type"])

    @property
    def replaceable(self) -> bool:
        """Progress is a snapshot: a later one makes an unsent earlier one worthless."""
        return self.type == "job.progress"

    @property
    def terminal(self) -> bool:
        """Whether nothing of the job comes after it."""
        return self.type in TERMINAL_TYPES


class EventLog:
    """Makes events of one attempt in order and keeps them on disk.

    Args:
        directory: the attempt's directory.
        job_id: the job.
        attempt: which start this is.
        instance: random name of this process, so that a replacement container is told apart.
        now: the clock.
        monotonic: seconds that no clock change touches, for how long this start has been at work.
    """

    def __init__(
        self,
        directory: Path,
        *,
        job_id: str,
        attempt: int,
        instance: str,
        now: Callable[[], datetime] = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = directory / EVENTS
        self._terminal = directory / TERMINAL
        self._job_id = job_id
        self._attempt = attempt
        self.instance = instance
        self._now = now
        self._monotonic, self._began = monotonic, monotonic()
        cut_torn_line(self._path)
        self._sequence = last_sequence(self._path)
        self._least = 1

    def go_on_from(self, sequence: int) -> None:
        """Number the next event at least so: what the receiver expects of a replacement with an empty disk."""
        self._least = max(self._least, sequence)

    def add(self, kind: str, **facts: Any) -> Event:
        """Make the next event, store it, and return it for sending.

        There is one terminal event an attempt: once it is on the disk, ending again gives the same one back.
        """
        if kind in TERMINAL_TYPES and (kept := read_terminal(self._terminal.parent)) is not None:
            return kept
        self._sequence = max(self._sequence + 1, self._least)
        document = {
            "v": 1, "id": f"{self._job_id}.{self._attempt}.{self._sequence}", "job_id": self._job_id,
            "attempt": self._attempt, "instance": self.instance, "seq": self._sequence, "type": kind,
            "time": self._now().isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "uptime_s": round(self._monotonic() - self._began, 3), **redacted(facts),
        }  # fmt: skip
        event = encode_event(document)
        try:
            if event.terminal:
                _keep_terminal(self._terminal, event.body)
            append_whole_line(self._path, event.body + b"\n", sync=not event.replaceable)
        except OSError as error:  # a full disk must not keep the control plane from hearing of it
            LOG.warning("event %s is sent but not kept: %s", event.id, error)
        return event


def read_events(folder: Path) -> list[Event]:
    """The events of an attempt's folder in order; what a kill cut off is passed over."""
    return [Event(json.loads(line), line) for line in _whole_lines(folder / EVENTS)]


def read_terminal(folder: Path) -> Event | None:
    """The terminal event of an attempt's folder, byte for byte, None without a whole one."""
    try:
        body = (folder / TERMINAL).read_bytes()
        document = json.loads(body)
        return Event(document, body) if document["type"] in TERMINAL_TYPES else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def lighter(event: Event) -> Event:
    """The event without metrics and settings, for a receiver that finds it too large; a terminal one as is."""
    if event.terminal:
        return event
    return encode_event(_drop_metrics(_drop_data(dict(event.document))))


def _keep_terminal(path: Path, body: bytes) -> None:
    """It is on the disk before anybody hears of it, made by one process alone and never replaced."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        write_atomic(path, body)  # cut off by a kill, so nobody heard of it: a whole one was given back before
        return
    with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor, not a path
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(path.parent)


def encode_event(document: Mapping[str, Any]) -> Event:
    """Encode an event as strict JSON within the size cap; what does not fit is cut, least useful first.

    Non-finite metrics become null and their names are listed under ``nonfinite``.
    """
    kept = dict(document)
    metrics = kept.get("metrics")
    if isinstance(metrics, Mapping):
        names = [name for name, value in metrics.items() if _has_nonfinite(value)]
        kept["nonfinite"] = sorted({*kept.get("nonfinite", []), *names})
        kept["metrics"] = dict(list(metrics.items())[:METRICS_IN_EVENT])
    for shorten in (
        _keep, _drop_traceback, _cut_message, _drop_data, _halve_metrics, _halve_metrics, _drop_metrics,
        _only_envelope,
    ):  # fmt: skip
        kept = shorten(kept)
        body = json.dumps(finite(kept), separators=(",", ":"), allow_nan=False, default=str).encode()
        if len(body) <= EVENT_BYTES:
            break
    return Event(kept, body)


def last_sequence(path: Path) -> int:
    """Sequence number of the last whole event in a log, 0 without one."""
    return max((int(json.loads(line)["seq"]) for line in _whole_lines(path)), default=0)


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Lines of a log that are events; one cut off by a kill is none."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            if int(json.loads(line)["seq"]) > 0:
                yield line
        except (ValueError, KeyError, TypeError):
            continue


def _has_nonfinite(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_nonfinite(each) for each in value.values())
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    return isinstance(value, float) and not math.isfinite(value)


def _keep(document: dict[str, Any]) -> dict[str, Any]:
    return document


def _drop_traceback(document: dict[str, Any]) -> dict[str, Any]:
    failure = document.get("failure")
    if not isinstance(failure, Mapping):
        return document
    kept = {name: value for name, value in failure.items() if name not in ("traceback", "problems")}
    return {**document, "failure": kept}


def _cut_message(document: dict[str, Any]) -> dict[str, Any]:
    failure = document.get("failure")
    if not isinstance(failure, Mapping):
        return document
    return {**document, "failure": {**failure, "message": str(failure.get("message", ""))[:200]}}


def _drop_data(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("settings", "data", "inputs")}


def _halve_metrics(document: dict[str, Any]) -> dict[str, Any]:
    metrics = document.get("metrics")
    if not isinstance(metrics, Mapping):
        return document
    return {**document, "metrics": dict(list(metrics.items())[: len(metrics) // 2])}


def _drop_metrics(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in ("metrics", "outputs")}


def _only_envelope(document: dict[str, Any]) -> dict[str, Any]:
    names = ("v", "id", "job_id", "attempt", "instance", "seq", "type", "time", "uptime_s", "status", "code")
    return {name: document[name] for name in names if name in document}
