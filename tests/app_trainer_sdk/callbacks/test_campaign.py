"""A fault campaign: whatever dies or misbehaves on the way, the listener's record is the truth on the disk.

``CAMPAIGN_JOBS`` says how many jobs are lived through (``make soak``: 200). Each has its own random faults:
ranks, supervisors and listeners killed, answers that are wrong, late, cut off or never come, deliveries
repeated and out of order. They follow from a seed, so that a job that fails can be lived through again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from app_trainer_sdk.callbacks.flush import main as events
from app_trainer_sdk.events import TERMINAL_TYPES, read_terminal
from app_trainer_sdk.listener import Desk, Fault, Listener

JOBS = int(os.environ.get("CAMPAIGN_JOBS", "3"))
FIRST = int(os.environ.get("CAMPAIGN_SEED", "1"))
WORDS = ("ok", "500", "503/0", "429", "413", "400", "away", "delay=0.05", "hang")
SCRIPT = """
for part in range(6):
    train(10, 0.003)
    say("evaluation", step=part, split="validation", seconds=0.1, loss=0.5)
say("artifact", name="w", path="artifacts/w", bytes=77, sha256="0" * 64)
end(0, "succeeded", outputs=[{"name": "w", "path": "artifacts/w", "bytes": 77, "sha256": "0" * 64}])
"""


class Life:
    """One job: its control plane, its starts, and what befell them."""

    def __init__(self, fakes: Any, folder: Path, seed: int) -> None:
        self._fakes = fakes
        self._chance = random.Random(seed)
        self._folder = folder
        self.befell: Counter[str] = Counter()
        self.listener = self._listen(("127.0.0.1", 0))

    def live(self) -> None:
        """Start until it has ended, disturbing each start but the last."""
        mode = self._chance.choice(("control", "notify"))
        parts = {"callbacks": {"url": f"{self.listener.url}/events", "mode": mode}}
        for start in range(4):
            self._line_up_faults()
            process = self._fakes.start(SCRIPT, **parts)
            if start < 3:
                self._disturb(process)
            process.wait(timeout=60)
            self.befell["starts"] += 1
            if self._ended():
                break
        self.listener.desk.always = Fault()
        self.listener.desk.faults.clear()
        self.listener.desk.released.set()
        assert events(["flush", str(self._fakes.layout.root), "--seconds", "20"]) == 0
        self._repeat()
        self.listener.__exit__()

    def _listen(self, address: tuple[str, int]) -> Listener:
        return Listener(Desk(self._folder / "desk", price=3600.0), address).__enter__()

    def _line_up_faults(self) -> None:
        words = self._chance.choices(WORDS, k=self._chance.randrange(6))
        self.befell["wrong answers"] += sum(word != "ok" for word in words)
        self.listener.desk.line_up(map(Fault.parse, words))

    def _disturb(self, process: Any) -> None:
        deed = self._chance.choice(("rank", "supervisor", "listener", "repeat", "nothing"))
        attempts = self._folder / "dir" / "attempts"
        before = len(list(attempts.glob("*/events.jsonl")))
        while process.poll() is None and len(list(attempts.glob("*/events.jsonl"))) == before:
            time.sleep(0.01)
        time.sleep(self._chance.uniform(0.0, 0.7))
        self.befell[deed] += 1
        if deed == "supervisor":
            process.kill()
        elif deed == "rank":
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children():
                    child.kill()
        elif deed == "listener":
            address = self.listener.server_address
            self.listener.__exit__()
            self.listener = self._listen(address)  # type: ignore[arg-type]
        elif deed == "repeat":
            self._repeat()
        self.listener.desk.released.set()  # who waits for an answer that never comes gets one

    def _repeat(self) -> None:
        """The network delivers some of what it carried once more, and not in order."""
        carried = [body for body, _ in list(self.listener.desk.deliveries)]
        for body in self._chance.sample(carried, min(5, len(carried))):
            self.listener.desk.hear(body)
            self.befell["repeated"] += 1

    def _ended(self) -> bool:
        return read_terminal(self._last()) is not None

    def _last(self) -> Path:
        folders = (self._fakes.layout.root / "attempts").iterdir()
        return max(folders, key=lambda folder: int(folder.name))

    def told_the_truth(self) -> None:
        """Compare what was heard with what is on the disk."""
        end, record = read_terminal(self._last()), self.listener.desk.jobs()["j"]
        heard = self.listener.desk.events("j")
        terminals = [event for event in heard if event["type"] in TERMINAL_TYPES]
        said = [json.loads(line) for line in (self._last() / "events.jsonl").read_text().splitlines()]
        settled = (self._last() / "delivered.jsonl").read_text().splitlines()
        unwanted = {line["seq"] for line in map(json.loads, settled) if line["how"] != "heard"}
        names = [(event["id"], event["instance"]) for event in heard]

        assert end is not None
        assert (record.terminal, record.state, record.code) == (
            end.id, end.document["status"], end.document["code"]
        )  # fmt: skip
        assert terminals[-1] == json.loads(end.body)
        assert len({event["id"] for event in terminals}) == len(terminals)
        assert len(set(names)) == len(names)
        wanted = {
            event["id"] for event in said if event["type"] != "job.progress" and event["seq"] not in unwanted
        }
        assert wanted <= {event["id"] for event in heard}
        assert record.output_bytes == end.document["outputs"]["bytes"]
        assert record.cost == pytest.approx(sum(record.seconds.values()))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + JOBS))
def test_the_record_is_the_truth(run_fake: Any, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch):
    """One end, the one on the disk; no event taken twice, none lost that was not refused; its size and cost."""
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "1")
    monkeypatch.setenv("APP_TRAINER_MIN_EVENT_INTERVAL", "0.05")
    life = Life(run_fake, tmp_path, seed)
    life.live()
    sys.stdout.write(f"seed {seed}: {dict(life.befell)}\n")
    life.told_the_truth()
