"""Owns a phase's work in a process of its own: whatever it leaves behind goes with the process.

The process is started afresh, so a device may be in use here. It hears of a wish to stop over its pipe and
answers with the phase's row or with what went wrong. This file must not know what a phase computes.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from app_trainer_sdk.channel import PULSE_SECONDS, StopToken, work_is_elsewhere
from app_trainer_sdk.descendants import die_with_parent
from app_trainer_sdk.errors import InternalError, StopRequested
from app_trainer_sdk.handle import Run, no_check, no_ledger, no_progress
from app_trainer_sdk.training import interrupts
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.memory import probe_for
from app_trainer_sdk.values import Phase

if TYPE_CHECKING:
    from app_trainer_sdk.contract import Trainer

#: How long the process may take to end after a wish to stop; the rank's own grace is longer.
STOP_SECONDS = 10.0
POLL_SECONDS = 0.05

Work = Callable[[Phase, Run, Path], None]


@dataclasses.dataclass(frozen=True)
class Task:
    """What the process is told."""

    trainer: type[Trainer]
    phase: str
    run: Run
    folder: Path
    work: Work
    threads: int


def work_in_own_process(
    trainer: Trainer, phase: Phase, run: Run, folder: Path, work: Work
) -> Mapping[str, Any]:
    """Do a phase's work in a new process; returns the row that the process measured of itself.

    Args:
        trainer: its class must be importable by name, and ``phases(run)`` must give the phase again.
        phase: the phase.
        run: the handle; what it holds must be picklable.
        folder: where the result goes.
        work: does the work, such as ``phases.work_here``.

    Raises:
        StopRequested: somebody asked; the process has ended.
        InternalError: the process died without a word.
        Exception: what the phase raised.
    """
    plain = dataclasses.replace(run, check=no_check, progress=no_progress, phase=no_ledger)
    task = Task(type(trainer), phase.name, plain, folder, work, torch.get_num_threads())
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_main, args=(theirs, task), name=f"phase-{phase.name}", daemon=True)
    process.start()
    theirs.close()
    try:
        kind, value = _listen(ours, run)
        process.join(STOP_SECONDS)
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        ours.close()
    if kind == "failed":
        raise value
    if kind != "done":
        raise InternalError(
            f"the process of phase {phase.name} {_how(process.exitcode)}",
            expected="it to finish",
            setting="own_process, or the memory of this host when something killed it",
        )
    row: Mapping[str, Any] = value
    return row


def _listen(connection: Connection, run: Run) -> tuple[str, Any]:
    """Pass on progress and wishes to stop until the last word; without one, ``("died", None)``."""
    give_up, stop = float("inf"), None
    while True:
        if stop is None:
            try:
                with work_is_elsewhere():
                    run.check()
            except StopRequested as asked:
                stop, give_up = asked, time.monotonic() + STOP_SECONDS
                connection.send(asked)
        if time.monotonic() > give_up:
            return "failed", stop
        try:
            if not connection.poll(POLL_SECONDS):
                continue
            kind, value = connection.recv()
        except (EOFError, ConnectionError):
            return ("died", None) if stop is None else ("failed", stop)
        if kind == "progress":
            run.progress(*value)
        elif kind != "pulse":
            return kind, value
        elif stop is None:
            run.check()  # passes on that the other process looks for a wish


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _main(connection: Connection, task: Task) -> None:
    """The new process."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stop requests come over the pipe
    torch.set_num_threads(task.threads)
    token, say = StopToken(), _Say(connection)
    interrupts.install(token)
    threading.Thread(target=_hear, args=(connection, token, say), daemon=True).start()
    try:
        say("done", _measured(task, say, token))
    except BaseException as error:  # noqa: BLE001 - every ending is told
        say("failed", _portable(error, task.phase))


class _Say:
    """Sends words to the rank, one thread at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def __call__(self, kind: str, value: Any) -> None:
        with self._lock:
            self._connection.send((kind, value))


def _measured(task: Task, say: Callable[[str, Any], None], token: StopToken) -> Mapping[str, Any]:
    assert task.run.device is not None
    rows: list[Mapping[str, Any]] = []
    ledger = Ledger(probe_for(task.run.device), lambda row: rows.append(row.document()), policy="report")
    run = dataclasses.replace(
        task.run, check=token.check, phase=ledger.phase,
        progress=lambda *facts: say("progress", facts),
    )  # fmt: skip
    phase = next((each for each in task.trainer().phases(run) if each.name == task.phase), None)
    if phase is None:
        raise InternalError(f"phases() gave no {task.phase} in its own process", expected="the same phases")
    with ledger.phase(task.phase), interrupts.interruptible():
        task.work(phase, run, task.folder)
    return {**rows[-1], "inside": rows[:-1]}


def _hear(connection: Connection, token: StopToken, say: Callable[[str, Any], None]) -> None:
    looks = 0
    try:
        while not connection.poll(PULSE_SECONDS):
            if token.looks > looks:
                looks = token.looks
                say("pulse", None)
        asked = connection.recv()
    except (EOFError, OSError):
        return
    token.request(asked.reason, checkpoint=asked.checkpoint)
    while True:  # until the process ends, soon
        interrupts.nudge()
        time.sleep(PULSE_SECONDS)


def _portable(error: BaseException, phase: str) -> BaseException:
    """The error as it can travel, with its traceback as a note."""
    error.add_note(f"in the process of phase {phase}:\n{''.join(traceback.format_exception(error))}")
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - foreign errors may refuse in any way
        told = InternalError(f"{type(error).__name__}: {error}")
        told.__notes__ = error.__notes__
        return told
    return error
