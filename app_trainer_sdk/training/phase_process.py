"""Owns a phase's work in a process of its own: whatever it leaves behind goes with the process.

The process is started afresh, so a device may be in use here. It hears of a wish to stop over its pipe and
answers with the phase's row or with what went wrong. This file must not know what a phase computes.
"""

from __future__ import annotations

import ctypes
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

from app_trainer_sdk.channel import StopToken
from app_trainer_sdk.errors import InternalError, StopRequested
from app_trainer_sdk.handle import Run, no_check, no_ledger, no_progress
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.memory import probe_for
from app_trainer_sdk.values import Phase

if TYPE_CHECKING:
    from app_trainer_sdk.contract import Trainer

#: How long the process may take to end after a wish to stop; the rank's own grace is longer.
STOP_SECONDS = 10.0
POLL_SECONDS = 0.05
PARENT_DEATH_SIGNAL = 1  # prctl's PR_SET_PDEATHSIG

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
        if kind != "progress":
            return kind, value
        run.progress(*value)


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _main(connection: Connection, task: Task) -> None:
    """The new process."""
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stop requests come over the pipe
    torch.set_num_threads(task.threads)
    token = StopToken()
    threading.Thread(target=_hear, args=(connection, token), daemon=True).start()
    try:
        connection.send(("done", _measured(task, connection, token)))
    except BaseException as error:  # noqa: BLE001 - every ending is told
        connection.send(("failed", _portable(error, task.phase)))


def _measured(task: Task, connection: Connection, token: StopToken) -> Mapping[str, Any]:
    assert task.run.device is not None
    rows: list[Mapping[str, Any]] = []
    ledger = Ledger(probe_for(task.run.device), lambda row: rows.append(row.document()), policy="report")
    run = dataclasses.replace(
        task.run, check=token.check, phase=ledger.phase,
        progress=lambda *facts: connection.send(("progress", facts)),
    )  # fmt: skip
    phase = next((each for each in task.trainer().phases(run) if each.name == task.phase), None)
    if phase is None:
        raise InternalError(f"phases() gave no {task.phase} in its own process", expected="the same phases")
    with ledger.phase(task.phase):
        task.work(phase, run, task.folder)
    return {**rows[-1], "inside": rows[:-1]}


def _hear(connection: Connection, token: StopToken) -> None:
    try:
        asked = connection.recv()
    except (EOFError, OSError):
        return
    token.request(asked.reason, checkpoint=asked.checkpoint)


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
