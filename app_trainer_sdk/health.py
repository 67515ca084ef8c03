"""Owns the heartbeat of an attempt: the file that is written while it lives, and the command that reads it.

It must not know how a job is run.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app_trainer_sdk.arguments import Parser, job_directory
from app_trainer_sdk.errors import BadJob, ExitCode
from app_trainer_sdk.files import read_json
from app_trainer_sdk.paths import PREFIX, JobDirectory, number_from_environment

HEARTBEAT = "heartbeat"
HEARTBEAT_SECONDS = 30.0
#: Beats that may be missing: one that is late is no death.
MISSED_BEATS = 3


class Heartbeat:
    """Writes ``attempts/<n>/heartbeat`` every ``HEARTBEAT_SECONDS``.

    Args:
        folder: the attempt's folder.
        clock: seconds of this machine that no one sets.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / HEARTBEAT
        self._clock = clock
        self._every = number_from_environment("HEARTBEAT_SECONDS", HEARTBEAT_SECONDS)
        self._next = float("-inf")
        self._phase: object = None

    def beat(self, **facts: Any) -> None:
        """Write it if it is due, or if the phase or ``over`` (the attempt's end was told) is another.

        A disk that takes nothing is told by other files, not by this one.
        """
        now = self._clock()
        phase = facts.get("phase"), facts.get("over")
        if now < self._next and phase == self._phase:
            return
        self._next, self._phase = now + self._every, phase
        time_text = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        document = {"time": time_text, "monotonic": now, "every_seconds": self._every, **facts}
        beside = self._path.with_name(f".{HEARTBEAT}.tmp")
        with contextlib.suppress(OSError):
            beside.write_text(json.dumps(document) + "\n")
            beside.replace(self._path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell whether the job in a directory is alive: 0; how it ended: its own code; 70 when it beats no more.

    A directory that is not there is a wrong request: 64.
    """
    parser = Parser(prog="app-trainer health", description="Tell whether a job is alive, or how it ended.")
    usual = os.environ.get(PREFIX + "JOB_DIR") or "/job"
    parser.add_argument("directory", type=Path, nargs="?", metavar="DIR", help=f"the job's directory ({usual})")
    parser.add_argument("--job-dir", type=Path, metavar="DIR", help="the same, as app-trainer run takes it")
    chosen = parser.parse_args(arguments)
    try:
        directory = job_directory(chosen.directory or chosen.job_dir or Path(usual))
    except BadJob as error:
        sys.stderr.write(f"health: {error}\n")
        return int(error.code)
    code, told = health(directory)
    sys.stdout.write(told + "\n")
    return int(code)


def health(directory: Path, *, clock: Callable[[], float] = time.monotonic) -> tuple[ExitCode, str]:
    """How the newest attempt in a job's directory is, as an exit code, and the line that says so.

    It is alive until it has told its end; then its result says how it ended. Ages are of the machine's running
    time, so that setting its clock ends no job.
    """
    beats = [each for each in (directory / "attempts").glob(f"*/{HEARTBEAT}") if each.parent.name.isdecimal()]
    if not beats:
        return ExitCode.INTERNAL_ERROR, f"no heartbeat in {directory}: no attempt has begun here"
    path = max(beats, key=lambda each: int(each.parent.name))
    try:
        beat = json.loads(path.read_bytes())
        age, every = clock() - float(beat["monotonic"]), float(beat["every_seconds"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        return ExitCode.INTERNAL_ERROR, f"cannot read {path}: {error}"
    beating = 0 <= age <= every * MISSED_BEATS and not beat.get("over")
    if not beating and (ended := _ending(directory)) is not None:
        return ended
    told = _told(path.parent.name, beat)
    if beating:
        return ExitCode.SUCCEEDED, f"alive: {told}, last beat {age:.0f} s ago"
    when = f"{age:.0f} s ago" if age >= 0 else "before this machine started"
    return ExitCode.INTERNAL_ERROR, f"dead: {told}, last beat {when}, expected every {every:g} s"


def _told(attempt: str, beat: Mapping[str, Any]) -> str:
    words = [f"attempt {attempt}"]
    words += [f"phase {beat['phase']}"] if beat.get("phase") else []
    words += [f"update {beat['step']}"] if beat.get("step") is not None else []
    words += ["stalled"] if beat.get("stalled") else []
    return ", ".join(words)


def _ending(directory: Path) -> tuple[ExitCode, str] | None:
    """How the result in a job's directory says that it ended; a new attempt puts it away first."""
    try:
        result = read_json(JobDirectory(directory).result)
        code = ExitCode(result["exit_code"])
        how = "" if code is ExitCode.SUCCEEDED else f" ({result['name']}, exit code {int(code)})"
        return code, f"ended: {result['status']}{how}, attempt {result['attempt']}"
    except (OSError, ValueError, TypeError, KeyError):
        return None  # it was killed before it could say


if __name__ == "__main__":
    sys.exit(main())
