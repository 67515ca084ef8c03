"""A supervisor with a rank that trains nothing and imports nothing: what is said is all there is."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from process_helpers import TOY, program

from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.job import Job, load_job
from app_trainer_sdk.listener import Desk, Listener
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.redaction import guard
from app_trainer_sdk.supervisor import Supervisor

#: What a made-up rank can do here, beyond what all of them can.
TRAINS = """
import select
def progress(step, total, loss):
    spread = {"last": loss, "mean": loss, "min": loss, "max": loss, "n": 1}
    say("progress", step=step, total=total, updates_per_second=1.0, eta_seconds=1.0, metrics={"loss": loss},
        spreads={"loss": spread}, nonfinite=[], seconds=0.1, data_seconds=0.0)
def metric(**facts):
    with (folder.parent.parent / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(facts) + "\\n")
def train(total, seconds=0.02):
    for number in range(total):
        progress(number + 1, total, 1 / (number + 1))
        if select.select([line], [], [], seconds)[0]:
            obey()
say("phase", name="train")
"""
DRIVER = """
import sys
from pathlib import Path
from app_trainer_sdk.console import Console
from app_trainer_sdk.job import load_job
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.supervisor import Supervisor
job, directory, *program = sys.argv[1:]
sys.exit(Supervisor(load_job(Path(job)), JobDirectory(Path(directory)), Console(), program=program).run())
"""


@dataclass
class Fake:
    """A job with a made-up rank, and how it ended."""

    layout: JobDirectory
    console: io.StringIO = field(default_factory=io.StringIO)
    code: ExitCode | None = None

    def events(self, attempt: int = 1) -> list[dict[str, Any]]:
        """What was said."""
        lines = (self.layout.attempt(attempt) / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


class Fakes:
    """Jobs whose rank does what a script says: called, in this process; started, in one of their own."""

    def __init__(self, folder: Path) -> None:
        self.layout = JobDirectory(folder / "dir")
        self.job = folder / "job.json"
        self._started: list[subprocess.Popen[bytes]] = []

    def __call__(self, script: str = "leave(0, 'succeeded', outputs=[])", **parts: Any) -> Fake:
        job = self._write(parts)
        guard(job.document())
        fake = Fake(self.layout)
        fake.code = Supervisor(job, self.layout, Console(fake.console), program=program(TRAINS + script)).run()
        return fake

    def start(self, script: str, **parts: Any) -> subprocess.Popen[bytes]:
        self._write(parts)
        words = [sys.executable, "-c", DRIVER, self.job, self.layout.root, *program(TRAINS + script)]
        self._started.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))
        return self._started[-1]

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.wait()

    def _write(self, parts: dict[str, Any]) -> Job:
        self.job.write_text(json.dumps({**TOY, "job_id": "j", **parts}))
        return load_job(self.job)


@pytest.fixture
def run_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fakes]:
    """Run jobs in one directory; nothing of the environment reaches them."""
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("ATTEMPT", "SINKS", "TERMINATION_LOG", "CALLBACK_TOKEN", "CALLBACK_SECRET"):
        monkeypatch.delenv("APP_TRAINER_" + name, raising=False)
    fakes = Fakes(tmp_path)
    yield fakes
    fakes.end()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """A control plane."""
    with Listener(Desk(tmp_path / "desk", price=3600.0)) as server:
        yield server
