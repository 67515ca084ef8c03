"""Owns the jobs that the kit runs as real processes: one in one go, one killed and resumed, one stopped.

Nothing is patched: what runs is ``python -m app_trainer_sdk.run``, and the signals are the operating system's.
This file must not know what is promised of them. Importing it does not import torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.files import read_json, remove_tree
from app_trainer_sdk.job import Job
from app_trainer_sdk.paths import PREFIX, JobDirectory
from app_trainer_sdk.testing.verdict import BrokenPromise

TRIES = 5
POLL_SECONDS = 0.002
TIMEOUT_SECONDS = 3600.0


@dataclass(frozen=True)
class Life:
    """How a job of the kit ended.

    Attributes:
        layout: its directory.
        code: exit code of the last process.
        result: ``result.json``, empty when there is none.
        step: the newest valid checkpoint when it was interrupted, or at the end; -1 for none.
        console: what it printed.
        resumed: the update after which the last process went on, None when it began anew.
    """

    layout: JobDirectory
    code: int
    result: dict[str, Any]
    step: int
    console: str
    resumed: int | None = None

    @property
    def failure(self) -> dict[str, Any]:
        """The failure object of the result, empty when there is none."""
        return self.result.get("failure") or {}

    def tail(self) -> str:
        """The end of what went wrong, for a reason of one paragraph."""
        message = self.failure.get("message") or "".join(self.console.splitlines(keepends=True)[-6:])
        trace = str(self.failure.get("traceback", "")).strip().splitlines()
        return str(message).strip() + (
            f" ({trace[-1].strip()})" if trace and trace[-1].strip() not in message else ""
        )


class Lives:
    """The three jobs. Each is lived when first asked for; light ones all at once, side by side.

    Args:
        job: the small job.
        folder: where their directories go.
        together: run all three as soon as one is needed.
    """

    def __init__(self, job: Job, folder: Path, *, together: bool) -> None:
        self._job = job
        self._folder = folder
        self._together = together
        self._pool = ThreadPoolExecutor(max_workers=3 if together else 1)
        self._futures: dict[str, Future[Life]] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self._ways: dict[str, Callable[[Path], Life]] = {
            "whole": self._live_whole, "killed": self._live_killed, "stopped": self._live_stopped
        }  # fmt: skip

    def whole(self) -> Life:
        """The job in one go."""
        return self._life("whole")

    def killed(self) -> Life:
        """The job, SIGKILLed after its first checkpoint and started again."""
        return self._life("killed")

    def stopped(self) -> Life:
        """The job, sent SIGTERM after its first checkpoint."""
        return self._life("stopped")

    def close(self) -> None:
        """End what still runs."""
        self._closed = True
        for process in list(self._running):
            _kill(process)
        self._pool.shutdown(cancel_futures=True)

    def _life(self, name: str) -> Life:
        for each in self._ways if self._together else (name,):
            if each not in self._futures:
                self._futures[each] = self._pool.submit(self._ways[each], self._folder / each)
        return self._futures[name].result()

    def _live_whole(self, folder: Path) -> Life:
        with self._process(folder) as process:
            process.wait(TIMEOUT_SECONDS)
        return _told(folder, process.returncode)

    def _live_killed(self, folder: Path) -> Life:
        step = self._interrupt(folder, lambda process: _kill(process))
        with self._process(folder) as process:
            process.wait(TIMEOUT_SECONDS)
        return _told(folder, process.returncode, step=step)

    def _live_stopped(self, folder: Path) -> Life:
        codes: list[int] = []

        def stop(process: subprocess.Popen[bytes]) -> None:
            process.send_signal(signal.SIGTERM)
            codes.append(process.wait(TIMEOUT_SECONDS))

        step = self._interrupt(folder, stop)
        return _told(folder, codes[-1], step=step)

    def _interrupt(self, folder: Path, act: Callable[[subprocess.Popen[bytes]], None]) -> int:
        """Start the job and interrupt it after its first checkpoint; the step it was left at."""
        for _ in range(TRIES):
            remove_tree(folder)
            with self._process(folder) as process:
                if not _wait_for_checkpoint(process, folder):
                    life = _told(folder, process.returncode)
                    raise BrokenPromise(
                        f"the job ended with code {life.code} before its first checkpoint: {life.tail()}",
                        expected="to be interrupted while it trains",
                    )  # fmt: skip
                act(process)
            step = newest_step(folder, self._job)
            if step < _updates(folder):
                return step
        raise BrokenPromise(
            f"the job made all its updates within {TRIES} tries before it could be interrupted",
            expected="a run that takes longer", setting="--set updates to a larger number",
        )  # fmt: skip

    @contextlib.contextmanager
    def _process(self, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
        folder.mkdir(parents=True, exist_ok=True)
        job = self._folder / "job.json"
        job.write_text(json.dumps(self._job.document()))
        command = [sys.executable, "-m", "app_trainer_sdk.run", "--job", str(job), "--job-dir", str(folder)]
        with (folder / "console").open("wb") as console:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, env=environment(),
                start_new_session=True,
            )  # fmt: skip
        self._running.add(process)
        try:
            if self._closed:
                raise BrokenPromise("the check was ended")
            yield process
        finally:
            if process.poll() is None:
                _kill(process)
            self._running.discard(process)


def environment() -> dict[str, str]:
    """This process's environment for a child that must find the same modules, outside of any job."""
    kept = {"CACHE_DIR", "STALL_SECONDS"}
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(PREFIX) or name.removeprefix(PREFIX) in kept
    }
    here = [str(Path.cwd()), *(each for each in sys.path if each and Path(each).exists())]
    return {**own, "PYTHONPATH": os.pathsep.join(dict.fromkeys(here))}


def newest_step(folder: Path, job: Job) -> int:
    """The step of the newest valid checkpoint, -1 for none."""
    from app_trainer_sdk.training.checkpoint import CheckpointStore

    checkpoint, _ = CheckpointStore(JobDirectory(folder).checkpoints, job.identifier()).newest()
    return checkpoint.step if checkpoint else -1


def _updates(folder: Path) -> int:
    updates: int = read_json(JobDirectory(folder).plan)["updates"]
    return updates


def _told(folder: Path, code: int, *, step: int = -1) -> Life:
    layout = JobDirectory(folder)
    result = read_json(layout.result) if layout.result.exists() else {}
    console = (folder / "console").read_text(errors="replace")
    return Life(layout, code, result, step, console, _resumed(layout))


def _resumed(layout: JobDirectory) -> int | None:
    """Where the last attempt says it went on."""
    attempt = layout.attempt(int(layout.next_attempt()) - 1)
    events = attempt / "events.jsonl"
    lines = events.read_text().splitlines() if events.exists() else []
    plans = [each for each in map(json.loads, lines) if each.get("type") == "job.plan"]
    return plans[-1].get("resumed") if plans else None


def _wait_for_checkpoint(process: subprocess.Popen[bytes], folder: Path) -> bool:
    """Wait until the job's first checkpoint is there; False when the job ends before."""
    checkpoints = JobDirectory(folder).checkpoints
    limit = time.monotonic() + TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < limit:
        if checkpoints.is_dir() and any(each.name.startswith("step-") for each in checkpoints.iterdir()):
            return True
        time.sleep(POLL_SECONDS)
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL the training processes, then their supervisor, as a machine that dies would."""
    children = _children(process.pid)
    for each in [*children, process.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    process.wait()
    limit = time.monotonic() + 10
    while any(_alive(each) for each in children) and time.monotonic() < limit:
        time.sleep(POLL_SECONDS)


def _children(parent: int) -> list[int]:
    """Processes whose parent is ``parent``, from ``/proc``."""
    return [
        int(each.name)
        for each in Path("/proc").iterdir()
        if each.name.isdigit() and _stat(each)[1:2] == [str(parent)]
    ]


def _alive(process: int) -> bool:
    return _stat(Path("/proc") / str(process))[:1] not in ([], ["Z"], ["X"])


def _stat(folder: Path) -> list[str]:
    """State and parent of a process; nothing when it is gone."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return []


def interrupted_well(life: Life) -> bool:
    """Whether the stop was told as an interruption."""
    return life.code == ExitCode.INTERRUPTED and life.result.get("status") == "interrupted"
