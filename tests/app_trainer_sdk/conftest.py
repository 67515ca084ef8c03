"""What several tests share: a loopback server that answers as told, and toy jobs run as real processes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import psutil
import pytest
from held_trainers import finding_held_trainers
from loopback import Loopback, Received
from lying_server import LyingServer

from app_trainer_sdk.signals import WISHES

TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a run in this process settles for its libraries and for signals is gone after the test."""
    before, handlers = dict(os.environ), [(number, signal.getsignal(number)) for number in WISHES]
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)
    for number, handler in handlers:
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)


@pytest.fixture(autouse=True)
def loopback_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The platform's own setting; a job could not say it, and no test speaks to another host."""
    monkeypatch.setenv("APP_TRAINER_ALLOW_HOSTS", "127.0.0.1")


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., str]:
    """A job file whose data is not there: planning reads none."""

    def write(**hyperparameters: Any) -> str:
        document = {
            **TOY, "inputs": {"dataset": "nothing.jsonl"},
            "hyperparameters": hyperparameters,
        }  # fmt: skip
        path = tmp_path / "job.json"
        path.write_text(json.dumps(document))
        return str(path)

    return write


@pytest.fixture
def plans_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What plans does so in this process: one with torch takes seconds to start. A plan and a refusal that
    cross between two processes have tests of their own.
    """  # fmt: skip
    from app_trainer_sdk.planning import process
    from app_trainer_sdk.training.planning import answer

    def ask(request: Mapping[str, Any], *, seconds: float | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(answer(json.loads(json.dumps(request)))))
        if "error" in found:
            raise process._as_error(found["error"])
        return found

    monkeypatch.setattr(process, "ask", ask)
    monkeypatch.setattr("app_trainer_sdk.plan_command.ask", ask)


@pytest.fixture
def serve() -> Iterator[Callable[..., Loopback]]:
    """Start loopback servers; they are gone after the test."""
    servers: list[Loopback] = []

    def start(answer: Callable[[BaseHTTPRequestHandler, Received], None]) -> Loopback:
        server = Loopback(answer)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.released.set()
        server.shutdown()
        server.server_close()


@pytest.fixture
def serve_body() -> Iterator[Callable[..., LyingServer]]:
    """Servers of one body each, for downloads; they lie as they are told to."""
    servers: list[LyingServer] = []

    def start(body: bytes, *script: str, **said: Any) -> LyingServer:
        servers.append(LyingServer(body, script, **said))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


@dataclass
class ToyRun:
    """One ``python -m app_trainer_sdk.run`` of the toy, running or ended."""

    directory: Path
    job: Path
    process: subprocess.Popen[bytes]
    output: Path
    shell: str = "{}"
    code: int | None = None

    def events(self, attempt: int = 1) -> list[dict[str, Any]]:
        """Events of one attempt, in the order they were said."""
        path = self.directory / "attempts" / str(attempt) / "events.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for(self, kind: str, *, attempt: int = 1, seconds: float = 60.0) -> dict[str, Any]:
        """The first event of a kind, as soon as it is said."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None  # before looking: the last thing it did may be this event
            found = [event for event in self.events(attempt) if event["type"] == kind]
            if found:
                return found[0]
            assert not ended, self.told()
            time.sleep(0.05)
        raise AssertionError(f"no {kind} after {seconds} s: {self.told()}")

    def end(self, seconds: float = 150.0) -> int:
        """The exit code, once it is there."""
        self.code = self.process.wait(timeout=seconds)
        return self.code

    def told(self) -> str:
        """What it printed."""
        return self.output.read_text()

    def result(self) -> dict[str, Any]:
        """``result.json``."""
        document: dict[str, Any] = json.loads((self.directory / "result.json").read_text())
        return document

    def supervisor(self) -> int:
        """Process id of the supervisor, which may run below a shell."""
        return self.process.pid if self.shell == "{}" else children(self.process.pid)[0]

    def rank(self) -> int:
        """Process id of the rank, once it is there."""
        deadline = time.monotonic() + 60.0
        while not (found := children(self.supervisor())):
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.02)
        return found[0]


def _take_terminal() -> None:
    """In the child: the terminal at 0 is its own, so that Ctrl-C there reaches it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def children(pid: int) -> list[int]:
    """Process ids of the children."""
    try:
        return [each.pid for each in psutil.Process(pid).children()]
    except psutil.NoSuchProcess:
        return []


StartToy = Callable[..., ToyRun]


@pytest.fixture(scope="session")
def start_toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartToy]:
    """Start a toy job; give ``again`` to start the same job in the same directory once more."""
    cache = tmp_path_factory.mktemp("cache")
    runs: list[ToyRun] = []

    def start(
        *,
        again: ToyRun | None = None,
        environment: Mapping[str, str] | None = None,
        document: Mapping[str, Any] | None = None,
        shell: str = "{}",
        terminal: int | None = None,
        options: Sequence[str] = (),
        **hyperparameters: Any,
    ) -> ToyRun:
        folder = again.job.parent if again else tmp_path_factory.mktemp("toy")
        job = folder / "job.json"
        asked = json.loads(job.read_text()) if again else {**TOY, "hyperparameters": hyperparameters}
        job.write_text(json.dumps({**asked, **(document or {})}))
        output = folder / f"output-{len(runs)}"
        words = [
            sys.executable,
            "-m",
            "app_trainer_sdk.run",
            "--job",
            str(job),
            "--job-dir",
            str(folder / "dir"),
            *options,
        ]
        command = words if shell == "{}" else ["sh", "-c", shell.format(" ".join(words))]
        quick = {"APP_TRAINER_CACHE_DIR": str(cache), "APP_TRAINER_UPLOAD_WAIT_SECONDS": "1",
                 "APP_TRAINER_LOG_FORMAT": "text", "PYTHONPATH": finding_held_trainers()}  # fmt: skip
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("APP_TRAINER_")}
        with output.open("wb") as file:
            stream = file if terminal is None else terminal
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL if terminal is None else terminal,
                stdout=stream,
                stderr=stream,
                env={**inherited, **quick, **(environment or {})},
                cwd=folder,
                start_new_session=terminal is not None,
                preexec_fn=_take_terminal if terminal is not None else None,
            )
        runs.append(ToyRun(folder / "dir", job, process, output, shell))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.send_signal(signal.SIGKILL)  # its rank leaves by itself
            run.process.wait()


@pytest.fixture(scope="session")
def run_toy(start_toy: StartToy) -> StartToy:
    """Run a toy job to its end."""

    def run(**arguments: Any) -> ToyRun:
        toy = start_toy(**arguments)
        toy.end()
        return toy

    return run


@pytest.fixture(scope="session")
def finished(run_toy: StartToy) -> ToyRun:
    """One toy job that ended well; tests read it and leave it as it is."""
    toy = run_toy(updates=12, learning_rate=0.01, noise=0.01)

    assert toy.code == 0, toy.told()

    return toy


@pytest.fixture
def toy_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write a toy job; the shared cache is the test's own."""
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("APP_TRAINER_ATTEMPT", raising=False)

    def write(**parts: Any) -> Path:
        path = tmp_path / "job.json"
        path.write_text(json.dumps({**TOY, **parts}))
        return path

    return write
