"""Owns jobs that end by SIGKILL, and telling whether what they made in the end is what nobody's kill would.

A job is the command ``run``, or a *life*: the rank's own code, begun from ``start.json`` as a supervisor writes
it, in a process forked from one that has imported torch already: hundreds of kills take minutes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

from held_trainers import finding_held_trainers, holding
from torch_helpers import fork_server, read_lines, same_tensors

from app_trainer_sdk.files import RealDisk, sha256_tree, sync_file
from app_trainer_sdk.start import Start
from app_trainer_sdk.training.checkpoint import CheckpointStore, load_checkpoint
from app_trainer_sdk.values import Snapshot

POLL_SECONDS = 0.001
#: Added to each of a save's twelve fsyncs, and how long after its beginning a kill comes at most.
SYNC_SECONDS, SAVE_SECONDS = 0.01, 0.05
LIFE_SECONDS = 600.0


@dataclass
class Kills:
    """What was killed, and how many saves were under way then."""

    victims: Counter[str] = field(default_factory=Counter)
    in_saves: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.victims.values())


def start_job(
    directory: Path, job: Mapping[str, Any], *, pinned: bool = True, hold: int = 0
) -> subprocess.Popen[bytes]:  # fmt: skip
    """The command ``run`` on a job whose directory is ``directory/job``, on one processor or on all; a trainer
    that can be held is so after ``hold`` microbatches.
    """  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "asked.json").write_text(json.dumps(job))
    environment = {
        "APP_TRAINER_CACHE_DIR": str(directory.parent / "cache"), **os.environ, **holding(hold),
        "PYTHONPATH": finding_held_trainers(),
    }  # fmt: skip
    return subprocess.Popen(
        [sys.executable, "-m", "app_trainer_sdk.run", "--quiet", "--job", directory / "asked.json",
         "--job-dir", directory / "job"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
        preexec_fn=pin if pinned else None,
    )  # fmt: skip


def end_job(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Exit code and output, once they are there."""
    try:
        output, _ = process.communicate(timeout=LIFE_SECONDS)
    finally:
        process.kill()  # does nothing to one that has ended; its rank leaves by itself
    return process.returncode, output.decode()


def wait_for_checkpoint(process: subprocess.Popen[bytes], directory: Path, beyond: int) -> None:
    """Wait until there is a checkpoint after update ``beyond``; a job that ended first is a failure."""
    deadline = time.monotonic() + LIFE_SECONDS
    while newest_step(directory) <= beyond:
        assert process.poll() is None, process.stdout and process.stdout.read().decode()
        assert time.monotonic() < deadline, "too slow"
        time.sleep(POLL_SECONDS)


def kill_job(process: subprocess.Popen[bytes], victim: str) -> None:
    """SIGKILL the ``supervisor``, its ``rank``, or a loader ``worker`` of that."""
    (rank,) = _children(process.pid)
    if victim == "worker":
        assert _kill_worker(rank)
    else:
        os.kill(process.pid if victim == "supervisor" else rank, signal.SIGKILL)


def newest_step(directory: Path) -> int:
    """The newest checkpoint's step by its name, -1 while there is none."""
    folders = (directory / "checkpoints").glob("step-*")
    return max((int(each.name.split("-")[1]) for each in folders), default=-1)


def assert_same_job(one: Path, other: Path) -> None:
    """Two finished jobs made the same metrics, evaluations, artifact and last checkpoint, bit for bit.

    What tells of time is left aside, and how a job's own files are called.
    """
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert read_lines(one / name) == read_lines(other / name), name
    assert sha256_tree(one / "artifacts") == sha256_tree(other / "artifacts")
    here, there = _last_checkpoint(one), _last_checkpoint(other)
    assert here.values == there.values
    assert same_tensors(here.tensors, there.tensors)


def _last_checkpoint(directory: Path) -> Snapshot:
    checkpoint, _ = CheckpointStore(directory / "checkpoints", "killed").newest()
    assert checkpoint is not None
    saved = load_checkpoint(checkpoint)
    values = json.loads(json.dumps(saved.values))
    del values["driver"]["elapsed_seconds"]
    return Snapshot(saved.tensors, values)


def live(start: Start, directory: Path, moment: random.Random, kills: Kills, *, longest: float) -> bool:
    """One life of a job in ``directory``, killed at a moment drawn from ``moment``; whether it ended by itself.

    Half of the kills come at any time up to ``longest`` seconds, the other half once the first, second or third
    save has begun. Every fourth victim is a loader worker, after whose end the rank must fail by itself.
    """
    halves = _half_saves(directory)
    process, log = _begin(start, directory)
    target, saving, after = moment.random(), moment.random() < 0.5, moment.random()
    if saving:
        _wait_for_save(process, directory, halves, moment.randint(1, 3), after * SAVE_SECONDS)
    else:
        connection.wait([process.sentinel], timeout=after * longest)
    victim = "worker" if target < 0.25 and _kill_worker(process.pid) else "rank"
    if victim == "rank":
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    code = _end(process)
    assert code in (0, 70 if victim == "worker" else -signal.SIGKILL), (victim, code, log.read_text())
    if code == 0:
        return True
    kills.victims[victim] += 1
    kills.in_saves += bool(_half_saves(directory) - halves)
    return False


def finish(start: Start, directory: Path) -> None:
    """A last life that nobody ends."""
    process, log = _begin(start, directory)
    code = _end(process)
    assert code == 0, (code, log.read_text())


def pin() -> None:
    """In a new process: one processor, so that the toy's small sums are not split over threads."""
    os.sched_setaffinity(0, {random.SystemRandom().choice([*os.sched_getaffinity(0)])})


def _begin(start: Start, directory: Path) -> tuple[Any, Path]:
    number = len([*(directory / "attempts").glob("*")]) + 1
    path = dataclasses.replace(start, directory=str(directory), attempt=number).save()
    log = path.parent / "log"
    process = fork_server().Process(target=_rank, args=(str(path), str(log)))
    process.start()
    return process, log


def _end(process: Any) -> int | None:
    """The exit code, once it is there; 0 is what a process that was killed too late ended with."""
    process.join(LIFE_SECONDS)
    code: int | None = process.exitcode
    process.close()
    return code


def _half_saves(directory: Path) -> set[str]:
    """Names of saves that are under way, or were when somebody was killed."""
    with contextlib.suppress(FileNotFoundError):
        return {each.name for each in (directory / "checkpoints").iterdir() if each.name.startswith(".step-0")}
    return set()


def _rank(start: str, log: str) -> None:
    """In the forked process: a rank as the supervisor starts it, which hears everything and says nothing."""
    os.setsid()
    pin()
    gc.freeze()  # a phase collects garbage: it need not look at every import again
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    from app_trainer_sdk.training import rank

    RealDisk.sync = _slow_sync  # this process's own: a save then takes as long as that of a real model
    ours, theirs = socket.socketpair()
    threading.Thread(target=lambda: [*iter(lambda: ours.recv(65536), b"")], daemon=True).start()
    rank.end_process(rank.serve([start, str(theirs.detach())], rank.Rank.work))


def _slow_sync(disk: RealDisk, path: Path) -> None:
    time.sleep(SYNC_SECONDS)
    sync_file(path)


def _wait_for_save(process: Any, directory: Path, before: set[str], count: int, seconds: float) -> None:
    """Wait until the ``count``-th save is under way, and a moment longer."""
    seen = set(before)
    while not connection.wait([process.sentinel], timeout=POLL_SECONDS):
        seen |= _half_saves(directory)
        if len(seen) - len(before) >= count:
            time.sleep(seconds)
            return


def _kill_worker(rank: int) -> bool:
    """Kill a loader worker, if there is one."""
    with contextlib.suppress(OSError):
        for child in _children(rank):
            if b"app_trainer_sdk.training.replay" not in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(child, signal.SIGKILL)
                return True
    return False


def _children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
