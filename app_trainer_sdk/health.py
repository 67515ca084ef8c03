"""Owns the heartbeat of an attempt: the file that is written while it lives, and the command that reads it.

It must not know how a job is run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.paths import PREFIX, number_from_environment

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

    def beat(self, **facts: Any) -> None:
        """Write it if it is due. A disk that takes nothing is told by other files, not by this one."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + self._every
        time_text = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        document = {"time": time_text, "monotonic": now, "every_seconds": self._every, **facts}
        beside = self._path.with_name(f".{HEARTBEAT}.tmp")
        with contextlib.suppress(OSError):
            beside.write_text(json.dumps(document) + "\n")
            beside.replace(self._path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Tell whether the job in a directory is alive: 0, or 70 when its heart does not beat."""
    parser = argparse.ArgumentParser(prog="app-trainer health", description="Tell whether a job is alive.")
    directory = os.environ.get(PREFIX + "JOB_DIR", "/job")
    parser.add_argument(
        "--job-dir", type=Path, default=Path(directory), help=f"the job's directory ({directory})"
    )
    healthy, told = health(parser.parse_args(arguments).job_dir)
    sys.stdout.write(told + "\n")
    return int(ExitCode.SUCCEEDED if healthy else ExitCode.INTERNAL_ERROR)


def health(directory: Path, *, clock: Callable[[], float] = time.monotonic) -> tuple[bool, str]:
    """Whether the newest attempt in a job's directory beat lately, and the line that says so.

    Ages are of the machine's running time, so that setting its clock ends no job.
    """
    beats = [each for each in (directory / "attempts").glob(f"*/{HEARTBEAT}") if each.parent.name.isdecimal()]
    if not beats:
        return False, f"no heartbeat in {directory}: no attempt has begun here"
    path = max(beats, key=lambda each: int(each.parent.name))
    try:
        beat = json.loads(path.read_bytes())
        age, every = clock() - float(beat["monotonic"]), float(beat["every_seconds"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        return False, f"cannot read {path}: {error}"
    told = f"attempt {path.parent.name}, phase {beat.get('phase')}, update {beat.get('step')}"
    told += ", stalled" if beat.get("stalled") else ""
    if not 0 <= age <= every * MISSED_BEATS:
        when = f"{age:.0f} s ago" if age >= 0 else "before this machine started"
        return False, f"dead: {told}, last beat {when}, expected every {every:g} s"
    return True, f"alive: {told}, last beat {age:.0f} s ago"


if __name__ == "__main__":
    sys.exit(main())
