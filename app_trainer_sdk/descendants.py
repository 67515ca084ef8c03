"""Owns the processes below this one: finding them, ending all of them, and burying those nobody waits for.

Torch-free. A child may leave its session, and its parent may die before it: ``/proc`` tells who is below whom,
and a process that adopts orphans stays their ancestor. This file must not know what the processes do.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
#: A process that the kernel cannot end (it waits for a disk or a driver) must not keep its ancestor waiting.
KILL_SECONDS = 5.0
POLL_SECONDS = 0.01
#: Of ``prctl``.
SET_PARENT_DEATH_SIGNAL, SET_ADOPTING, GET_ADOPTING = 1, 36, 37
DEAD = ("Z", "X")


@dataclass(frozen=True)
class Process:
    """What ``/proc`` says of a process; a dead one stays until its parent has asked how it ended."""

    pid: int
    parent: int
    session: int
    dead: bool


def processes_below(
    pid: int, *, spared: Collection[int] = (), session: int | None = None, proc: Path = PROC
) -> list[Process]:
    """Children of a process, their children, and so on.

    Args:
        pid: the ancestor.
        spared: processes that are not looked at, nor what is below them.
        session: processes of this session are not looked at either.
        proc: the process filesystem.
    """
    everyone = [each for each in _processes(proc) if each.pid not in spared and each.session != session]
    found: list[Process] = []
    parents = {pid}
    while parents:
        below = [each for each in everyone if each.parent in parents]
        found += below
        parents = {each.pid for each in below}
    return found


def end_below(pid: int, *, spared: Collection[int] = (), session: int | None = None) -> bool:
    """SIGKILL everything below a process, until nothing of it is left alive.

    A child that was forked meanwhile is met in the next round, and an orphan too where its ancestor adopts.

    Args:
        pid: the ancestor, which lives on.
        spared: processes that are left alone, with all below them that does not become an orphan.
        session: processes of this session are left alone as well.

    Returns:
        False when something did not end in time.
    """
    give_up = time.monotonic() + KILL_SECONDS
    while True:
        below = processes_below(pid, spared=spared, session=session)
        left = [each.pid for each in below if not each.dead]
        if not left:
            return True
        for each in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(each, signal.SIGKILL)
        if time.monotonic() > give_up:
            return False
        time.sleep(POLL_SECONDS)


def bury_orphans(known: Collection[int]) -> None:
    """Take the status of dead orphans that this process inherited, as process 1 of a container must.

    Nobody's status is stolen: a child of this process's own session was begun here, and whoever began it asks.

    Args:
        known: children in other sessions that somebody here waits for.
    """
    try:
        # Looks without taking, so that a table of all processes is read only when somebody died.
        anybody = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    if anybody is None:
        return
    here, session = os.getpid(), os.getsid(0)
    for each in _processes(PROC):
        orphan = each.parent == here and each.session != session and each.pid not in known
        if each.dead and orphan:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(each.pid, os.WNOHANG)


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Inside, a process below this one whose parent dies becomes this one's child, as with process 1."""
    before = ctypes.c_int(0)
    _prctl(GET_ADOPTING, ctypes.byref(before))
    _prctl(SET_ADOPTING, 1)
    try:
        yield
    finally:
        _prctl(SET_ADOPTING, before.value)


def adopt_orphans() -> None:
    """The same for as long as this process lives."""
    _prctl(SET_ADOPTING, 1)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Get a signal when the thread that began this process ends, however it ends."""
    _prctl(SET_PARENT_DEATH_SIGNAL, number)


def _prctl(option: int, value: object) -> None:
    """Ask the kernel; one that does not know the option leaves things as they are."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _processes(proc: Path) -> Iterator[Process]:
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            # Gone since the listing, or of somebody else: not ours to end either way.
            with contextlib.suppress(OSError, ValueError, IndexError):
                state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                yield Process(int(folder.name), int(parent), int(session), state in DEAD)
