"""Owns what the listener knows and how it was told to misbehave. It must not know HTTP.

What was accepted is appended to ``events/<job>.jsonl`` before it is answered; a listener that was killed reads
it again, so it forgets nothing that it acknowledged.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app_trainer_sdk.files import json_object, read_lines
from app_trainer_sdk.receiver import Decision, Record, ask_to_cancel, expect, receive

JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
DROPPED, SILENT = 0, -1


@dataclass(frozen=True)
class Fault:
    """One way to answer an event wrongly.

    Attributes:
        status: to answer instead, without having heard the event; ``DROPPED`` closes the connection, ``SILENT``
            never answers.
        delay: seconds before a right answer; the event is heard at once.
        headers: further ones, such as ``Retry-After``.
    """

    status: int | None = None
    delay: float = 0.0
    headers: Mapping[str, str] | None = None

    @classmethod
    def parse(cls, word: str) -> Fault:
        """``500``, ``503/7`` (``Retry-After: 7``), ``away``, ``hang``, ``delay=3`` or ``ok``."""
        if word in ("ok", "away", "hang"):
            return cls({"ok": None, "away": DROPPED, "hang": SILENT}[word])
        if word.startswith("delay="):
            return cls(delay=float(word.removeprefix("delay=")))
        status, slash, wait = word.partition("/")
        if not status.isdecimal() or not 200 <= int(status) <= 599:
            raise ValueError(f"{word!r} is no answer; expected a status, ok, away, hang or delay=SECONDS")
        return cls(int(status), headers={"Retry-After": wait} if slash else None)


class Desk:
    """Records of jobs, and the answers to come.

    Args:
        folder: where accepted events and uploads lie.
        say: prints a line.
        gpus: of each job, for its cost.
        price: of a GPU for an hour.
        min_interval_s: least seconds between progress that is asked for.
    """

    def __init__(
        self, folder: Path, *, say: Callable[[str], None] = lambda line: None, gpus: int = 1,
        price: float = 0.0, min_interval_s: float = 0.0,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.uploads = folder / "uploads"
        self.say = say
        self.faults: deque[Fault] = deque()
        self.always = Fault()
        self.released = threading.Event()
        self.deliveries: list[tuple[bytes, str]] = []
        self._gpus, self._price, self._interval = gpus, price, min_interval_s
        self._lock = threading.Lock()
        self._closed = False
        self._records: dict[str, Record] = {}
        (folder / "events").mkdir(parents=True, exist_ok=True)
        for path in sorted((folder / "events").glob("*.jsonl")):
            self._read_again(path)

    def next_fault(self) -> Fault:
        """How the next delivery is answered: what was lined up, else what holds until it is changed."""
        with self._lock:
            return self.faults.popleft() if self.faults else self.always

    def line_up(self, faults: Iterable[Fault]) -> None:
        """Answer the next deliveries so, one each."""
        with self._lock:
            self.faults.extend(faults)

    def close(self) -> None:
        """Hear nothing more: another desk may read the folder from now on."""
        with self._lock:
            self._closed = True
        self.released.set()

    def hear(self, body: bytes) -> Decision:
        """Take a delivery; what is accepted is on the disk before the answer is known."""
        with self._lock:
            if self._closed:
                raise ConnectionAbortedError("the listener has ended")
            event = json_object(body)
            name = event.get("job_id")
            name = name if isinstance(name, str) and JOB.fullmatch(name) else "unknown"
            decision = receive(self._record(name, event), body, min_interval_s=self._interval)
            if decision.accepted:
                with (self.folder / "events" / f"{name}.jsonl").open("ab") as file:
                    file.write(body.replace(b"\n", b" ") + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
            if decision.accepted or name in self._records:
                self._records[name] = decision.record
            self.deliveries.append((body, decision.reason))
        self.say(told(event, decision))
        return decision

    def cancel(self) -> list[str]:
        """Say cancel to every job that has not ended; their names."""
        with self._lock:
            open_jobs = [name for name, record in self._records.items() if not record.terminal]
            for name in open_jobs:
                self._records[name] = ask_to_cancel(self._records[name])
        return open_jobs

    def jobs(self) -> dict[str, Record]:
        """What is known of each job."""
        with self._lock:
            return dict(self._records)

    def events(self, job_id: str) -> list[dict[str, Any]]:
        """What was accepted of a job, in the order it came."""
        return read_lines(self.folder / "events" / f"{job_id}.jsonl")

    def _record(self, name: str, event: Mapping[str, Any]) -> Record:
        """What is known of a job before ``event``; who starts again after a failure is expected at a desk."""
        record = self._records.get(name) or Record(name, gpus=self._gpus, price=self._price)
        attempt = event.get("attempt")
        again = isinstance(attempt, int) and record.state == "failed" and attempt > record.attempt
        return expect(record, int(attempt or 0)) if again else record

    def _read_again(self, path: Path) -> None:
        for event in read_lines(path):
            self._records[path.stem] = receive(self._record(path.stem, event), event).record


def told(event: Mapping[str, Any], decision: Decision) -> str:
    """A delivery for people: ``j.1.17 job.progress 41 % step 413/1000 loss 0.23``, and why it was not taken."""
    words = [str(event.get("id", "?")), str(event.get("type", "?"))]
    progress, phase = event.get("progress"), event.get("phase")
    if isinstance(phase, Mapping):
        words.append(str(phase.get("name")) + (f" {event['edge']}" if "edge" in event else ""))
    if isinstance(progress, Mapping):
        words.append(f"{100 * float(progress['fraction']):.1f} % step {progress['step']}/{progress['total']}")
    loss = (event.get("metrics") or {}).get("loss")
    value = loss.get("last") if isinstance(loss, Mapping) else loss
    if isinstance(value, float):
        words.append(f"loss {value:.4g}")
    if event.get("code") is not None:
        words.append(f"code {event['code']}")
    if decision.record.cost is not None and decision.accepted:
        words.append(f"cost {decision.record.cost:.4f}, outputs {decision.record.output_bytes} bytes")
    if not decision.accepted:
        words.append(f"({decision.reason})")
    return " ".join(words) + (" (late)" if decision.late else "")
