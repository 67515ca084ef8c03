"""Processes below this one: found wherever they went, ended all, and buried without stealing a status."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_helpers import gone, wait_for

from app_trainer_sdk.descendants import adopting_orphans, bury_orphans, end_below, processes_below

#: A child that begins another one, in a session of its own when told, says who it is, and stays.
FAMILY = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "60"], start_new_session=sys.argv[2] == "apart")
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(float(sys.argv[3]))
"""


class Family:
    """Starts such children, and ends what is left of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun: list[subprocess.Popen[bytes]] = []
        self.grandchildren: list[int] = []

    def begin(self, how: str = "apart", stays: float = 60) -> tuple[subprocess.Popen[bytes], int]:
        file = self.folder / str(len(self.begun))
        words = [sys.executable, "-I", "-S", "-c", FAMILY, str(file), how, str(stays)]
        self.begun.append(subprocess.Popen(words, start_new_session=True))
        self.grandchildren.append(int(wait_for(file)))
        return self.begun[-1], self.grandchildren[-1]


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    """A family that is gone after the test."""
    found = Family(tmp_path)
    yield found
    for each in found.begun:
        each.kill()
        each.wait()
    for pid in found.grandchildren:
        if not gone(pid, 0):
            os.kill(pid, signal.SIGKILL)


def test_who_is_below(family: Family):
    """Children and theirs, in whatever session; nobody else."""
    child, grandchild = family.begin()
    here = [each.pid for each in processes_below(os.getpid())]
    below = processes_below(child.pid)

    assert {child.pid, grandchild} <= set(here)
    assert [each.pid for each in below] == [grandchild]
    assert (below[0].parent, below[0].session, below[0].dead) == (child.pid, grandchild, False)


def test_all_are_ended(family: Family):
    """Everything below, but for those that are spared, with what is below them."""
    child, grandchild = family.begin()
    other, others = family.begin()
    spared = {each.pid for each in processes_below(os.getpid())} - {child.pid, grandchild, others}

    assert end_below(os.getpid(), spared=spared)
    assert gone(child.pid, 0)
    assert gone(grandchild, 0)
    assert other.poll() is None
    assert not gone(others, 0)


def test_what_this_session_began_is_its_own(family: Family):
    """A tracker's process stays, and so does a helper that it began in a session of its own."""
    words = [sys.executable, "-I", "-S", "-c", FAMILY, str(family.folder / "mine"), "apart", "60"]
    mine = subprocess.Popen(words)
    family.begun.append(mine)
    family.grandchildren.append(int(wait_for(family.folder / "mine")))
    before = {each.pid for each in processes_below(os.getpid())} - {mine.pid, family.grandchildren[-1]}

    assert end_below(os.getpid(), spared=before, session=os.getsid(0))
    assert mine.poll() is None
    assert not gone(family.grandchildren[-1], 0)


def test_an_orphan_is_adopted_and_ended(family: Family):
    """One that left the session and whose parent is dead is still below."""
    before = {each.pid for each in processes_below(os.getpid())}
    with adopting_orphans():
        child, grandchild = family.begin()
        child.kill()
        child.wait()

        assert grandchild in [each.pid for each in processes_below(os.getpid())]
        assert end_below(os.getpid(), spared=before)
        assert gone(grandchild, 0)
        bury_orphans(set())
    assert not Path(f"/proc/{grandchild}").exists()


def test_nobody_is_stolen_a_status(family: Family):
    """An orphan is buried; children of somebody here, of this session or known, keep their status."""
    mine = subprocess.Popen(["sh", "-c", "exit 3"])
    known = subprocess.Popen(["sh", "-c", "exit 4"], start_new_session=True)
    with adopting_orphans():
        _, grandchild = family.begin(stays=0)
        family.begun[-1].wait()
        os.kill(grandchild, signal.SIGKILL)
        for pid in (mine.pid, known.pid, grandchild):
            assert gone(pid)
        bury_orphans({known.pid})

    assert not Path(f"/proc/{grandchild}").exists()
    assert (mine.wait(), known.wait()) == (3, 4)


def test_without_children():
    """A process that has none has nobody to bury; asking is cheap and raises nothing."""
    code = "from app_trainer_sdk.descendants import *; import os; bury_orphans(set()); end_below(os.getpid())"
    done = subprocess.run([sys.executable, "-c", code], check=False)

    assert done.returncode == 0


def test_dying_with_the_parent(tmp_path: Path):
    """The signal comes when the parent is killed, though nothing closes and nobody tells."""
    file = tmp_path / "pid"
    child = "from app_trainer_sdk.descendants import die_with_parent as d; import os, time; d(); "
    child += f"open({str(file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent])
    pid = int(wait_for(file))
    process.kill()
    process.wait()

    assert gone(pid)
