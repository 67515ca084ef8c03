"""What signals mean to a rank. Everything here is a process of its own, and none has torch."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest
from process_helpers import gone, wait_for

#: A rank's beginning, and what it has around it: a child that left its session, and an orphan.
RANK = """
import os, pathlib, socket, subprocess, sys, time
from app_trainer_sdk.channel import RankChannel, StopToken
from app_trainer_sdk.training.rank_signals import *
token = StopToken()
settle_signals(token)
channel = RankChannel(socket.socket(fileno=int(sys.argv[1])), token, leave=leave_with_children)
apart = dict(start_new_session=True, stdout=subprocess.DEVNULL)
child = subprocess.Popen(["sleep", "600"], **apart)
code = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=-3).pid)"
orphan = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE)
pids = [os.getpid(), child.pid, int(orphan.stdout)]
folder = pathlib.Path(sys.argv[2])
(folder / "beside").write_text(" ".join(map(str, pids)))
(folder / "beside").rename(folder / "pids")
"""
#: Begins the rank as the supervisor does, and waits to be killed.
PARENT = """
import socket, subprocess, sys, time
ours, theirs = socket.socketpair()
words = [sys.executable, "-c", sys.argv[1], str(theirs.fileno()), sys.argv[2]]
subprocess.Popen(words, pass_fds=[theirs.fileno()], start_new_session=True)
theirs.close()
time.sleep(600)
"""


def family(folder, body):
    """A supervisor that only waits, its rank doing ``body``, and what that rank began: their ids."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT, RANK + body, str(folder)])
    return parent, [int(word) for word in wait_for(folder / "pids").split()]


def test_a_supervisor_that_was_killed(tmp_path):
    """A6: nothing is left, wherever it went."""
    parent, pids = family(tmp_path, "time.sleep(600)")
    parent.kill()
    parent.wait()

    assert [gone(pid) for pid in pids] == [True] * 3


def test_a_rank_that_cannot_look(tmp_path):
    """A6: a call into a library that keeps the interpreter to itself ends too, by the kernel's signal."""
    parent, (rank, *rest) = family(tmp_path, "import ctypes; ctypes.PyDLL(None).sleep(600)")
    parent.kill()
    parent.wait()
    over = gone(rank)
    for pid in rest:  # whoever leaves like this cannot end them; a container does
        os.kill(pid, signal.SIGKILL)

    assert over


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 5), (signal.SIGUSR1, 5)]
)
def test_a_signal(tmp_path, number, status):
    """A6: TERM ends it at once even in a library; INT is ignored; USR1 writes the stacks of all threads."""
    ours, theirs = socket.socketpair()
    log = tmp_path / "log"
    body = (
        "import ctypes\nwhile not (folder / 'sent').exists(): ctypes.PyDLL(None).usleep(100000)\nend_process(5)"
    )
    with log.open("wb") as output:
        words = [sys.executable, "-c", RANK + body, str(theirs.fileno()), str(tmp_path)]
        rank = subprocess.Popen(words, pass_fds=[theirs.fileno()], start_new_session=True, stderr=output)
    theirs.close()
    pids = [int(word) for word in wait_for(tmp_path / "pids").split()]
    rank.send_signal(number)
    if number != signal.SIGTERM:
        (tmp_path / "sent").touch()

    assert rank.wait(60) == status
    ours.close()
    for pid in pids[1:]:
        os.kill(pid, signal.SIGKILL)
    assert log.read_text().count("Thread 0x") >= (2 if number == signal.SIGUSR1 else 0)
