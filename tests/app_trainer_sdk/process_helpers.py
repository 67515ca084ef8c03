"""A supervisor in this process over ranks without torch, whose whole life is a line or two of Python."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app_trainer_sdk.attempt.admission import run_job
from app_trainer_sdk.callbacks.sinks import RecordingSink
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.events import Event
from app_trainer_sdk.job import load_job
from app_trainer_sdk.limits import PROC
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.supervisor import Supervisor

__all__ = ["run_job"]  # for the processes that are begun here

TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}
#: What is done to a supervisor.
Act = Callable[[Supervisor], object]
#: What every fake rank begins with: its place, its line, and how it leaves.
HEAD = """
import json, os, pathlib, resource, signal, socket, subprocess, sys, threading, time
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
rank = os.environ.get("RANK", "0")
folder = pathlib.Path(sys.argv[1]).parent
line = socket.socket(fileno=int(sys.argv[2]))
def say(kind, **facts):
    line.sendall(json.dumps({"kind": kind, **facts}).encode() + b"\\n")
def fail(code, message):
    return {"code": code, "name": message, "origin": "system", "retry": "once", "message": message,
            "phase": "train", "step": None, "exception": "Error"}
def leave(code, name="", **facts):
    status = {0: "succeeded", 75: "interrupted", 77: "interrupted", 81: "canceled"}.get(code, "failed")
    failure = fail(code, name) if code else None
    outcome = {"status": status, "exit_code": code, "name": name, "failure": failure, **facts}
    (folder / f"outcome-{rank}.json").write_text(json.dumps(outcome))
    os._exit(code)
def hear():
    words = line.recv(1000)
    return json.loads(words.splitlines()[0]) if words else os._exit(72)
CODES = {"interrupted": 75, "deadline": 77, "canceled": 81, "fenced": 76, "peer": 72}
def obey():
    stop = hear()
    leave(CODES[stop["reason"]], stop["reason"], step=int(stop["checkpoint"]))
"""


#: A rank says that it works.
BEGUN = "say('phase', name='train')\n"


def program(body: str) -> list[str]:
    """The command of a rank that does ``body``; without what slows a start."""
    return [sys.executable, "-I", "-S", "-c", HEAD + body]


@dataclass
class Told:
    """How a job ended, as everybody was told."""

    code: ExitCode
    directory: Path
    events: list[Mapping[str, Any]]
    console: str

    @property
    def result(self) -> dict[str, Any]:
        """``result.json``."""
        document: dict[str, Any] = json.loads((self.directory / "result.json").read_text())
        return document

    @property
    def kinds(self) -> list[str]:
        """Types of the events in order."""
        return [str(event["type"]) for event in self.events]

    @property
    def last(self) -> Mapping[str, Any]:
        """The last event."""
        return self.events[-1]


class Clock:
    """Seconds that go when told."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now

    def go(self, seconds: float) -> None:
        """So many seconds pass."""
        self.now += seconds


class Acting(RecordingSink):
    """Does something in the main thread whenever a phase is told: what a rank brings about happens there, and
    not while something else is done.
    """  # fmt: skip

    def __init__(self, acts: Sequence[Act]) -> None:
        super().__init__()
        self.supervisor: Supervisor
        self._acts = iter(acts)

    def send(self, event: Event) -> None:
        super().send(event)
        if event.type == "job.phase" and (act := next(self._acts, None)):
            act(self.supervisor)


def supervise(
    folder: Path, body: str, *, ranks: int = 1, proc: Path = PROC, job: Mapping[str, Any] | None = None,
    acts: Sequence[Act] = (), clock: Callable[[], float] = time.monotonic,
    meanwhile: Callable[[Supervisor], None] = lambda supervisor: None,
) -> Told:  # fmt: skip
    """Run a job whose ranks do ``body`` to its end.

    Args:
        folder: a folder of its own.
        body: Python after :data:`HEAD`.
        ranks: how many.
        proc: the process filesystem that memory is read from.
        job: parts of the job document.
        acts: what is done, one after the other, when phases are told.
        clock: seconds, of which the grace, the deadline and what stalls are made.
        meanwhile: called before it begins, for example to start a thread that watches.
    """
    path = folder / "job.json"
    path.write_text(json.dumps({**TOY, **(job or {})}))
    sink, console = Acting(acts), io.StringIO()
    layout = JobDirectory(folder / "dir")
    sink.supervisor = supervisor = Supervisor(
        load_job(path),
        layout,
        Console(console),
        sink,
        ranks=ranks,
        program=program(body),
        proc=proc,
        clock=clock,
    )
    meanwhile(supervisor)
    code = supervisor.run()
    return Told(code, folder / "dir", [dict(each.document) for each in sink.events], console.getvalue())


def read_events(directory: Path, attempt: int = 1) -> list[dict[str, Any]]:
    """What an attempt said, as it stands on the disk."""
    path = directory / "attempts" / str(attempt) / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def start_supervisor(
    folder: Path, body: str, *, below: Sequence[str] = (), job: Mapping[str, Any] | None = None,
    before: str = "", environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """The same as a process of its own, which sends events where the job says and ends with the job's code.

    Args:
        folder: a folder of its own.
        body: Python after :data:`HEAD`.
        below: the beginning of the command, such as a program that makes a namespace.
        job: parts of the job document.
        before: Python that the process does first.
        environment: variables.
    """
    (folder / "job.json").write_text(json.dumps({**TOY, **(job or {})}))
    code = before + (
        # As the command does: until somebody listens signals wait, and once the end is told again.
        "\nimport signal; signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))"
        "\nimport sys, pathlib, process_helpers as h\n"
        "h.Supervisor.__init__.__kwdefaults__['program'] = h.program(sys.argv[2])\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "sys.exit(h.run_job(folder / 'job.json', folder / 'dir', console=h.Console(quiet=True)))"
    )
    paths = [str(Path(__file__).parent), *sys.path]
    own = {name: value for name, value in os.environ.items() if not name.startswith("APP_TRAINER_")}
    own |= {"PYTHONPATH": os.pathsep.join(paths), "APP_TRAINER_CACHE_DIR": str(folder / "cache")}
    words = [*below, sys.executable, "-c", code, str(folder), body]
    return subprocess.Popen(words, env={**own, **(environment or {})})


def alive(pid: int) -> bool:
    """Whether a process is there and not only waiting to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, seconds: float = 60.0) -> bool:
    """Whether a process ends within so many seconds."""
    limit = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.01)
    return not alive(pid)


def wait_for(path: Path, seconds: float = 60.0) -> str:
    """The text of a file, once there is any."""
    limit = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < limit, f"no {path}"
        time.sleep(0.01)
    return path.read_text()


def signalled(number: int) -> Act:
    """A signal to this process."""
    return lambda supervisor: os.kill(os.getpid(), number)
