"""A supervisor with a rank that trains nothing and imports nothing: what is said is all there is."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.job import read_job
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.redaction import remember_document
from app_trainer_sdk.supervisor import Supervisor

TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}
RANK = """
import json, os, signal, socket, sys, time
folder, line = os.path.dirname(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))
signal.signal(signal.SIGINT, signal.SIG_IGN)
def say(kind, **facts):
    line.sendall(json.dumps({"kind": kind, **facts}).encode() + b"\\n")
def progress(step, total, loss):
    spread = {"last": loss, "mean": loss, "min": loss, "max": loss, "n": 1}
    say("progress", step=step, total=total, updates_per_second=1.0, eta_seconds=1.0, metrics={"loss": loss},
        spreads={"loss": spread}, nonfinite=[], seconds=0.1, data_seconds=0.0)
def metric(**facts):
    with open(os.path.join(folder, "..", "..", "metrics.jsonl"), "a") as file:
        file.write(json.dumps(facts) + "\\n")
def end(code, status, **facts):
    document = {"status": status, "exit_code": code, "name": status, **facts}
    with open(os.path.join(folder, "outcome-0.json"), "w") as file:
        json.dump(document, file)
    sys.exit(code)
def wait_for_stop():
    said = b""
    while not said.endswith(b"\\n"):
        said += line.recv(1000)
    reason = json.loads(said.splitlines()[0])["reason"]
    code = {"interrupted": 75, "fenced": 76, "deadline": 77, "canceled": 81}[reason]
    end(code, reason, failure={"code": code, "message": reason, "phase": "train", "step": 1,
        "origin": "system", "retry": "no"})
say("phase", name="train")
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


@pytest.fixture
def run_fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fake]:
    """Run a job whose rank does what ``script`` says, in this process's supervisor."""
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("ATTEMPT", "SINKS", "TERMINATION_LOG", "CALLBACK_TOKEN", "CALLBACK_SECRET"):
        monkeypatch.delenv("APP_TRAINER_" + name, raising=False)

    def run(script: str = "end(0, 'succeeded', outputs=[])", **parts: Any) -> Fake:
        program = tmp_path / "rank.py"
        program.write_text(RANK + script)
        job = read_job({**TOY, "job_id": "j", **parts})
        remember_document(job.document())
        fake = Fake(JobDirectory(tmp_path / "dir"))
        words = (sys.executable, "-S", "-E", str(program))
        fake.code = Supervisor(job, fake.layout, Console(fake.console), program=words).run()
        return fake

    return run
