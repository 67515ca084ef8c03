"""The whole way on an empty machine: everything by URL, killed in the middle, gone on with elsewhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from lying_server import body_of
from receivers import KIB, Receiver

from app_trainer_sdk.files import sha256_file
from app_trainer_sdk.schemas.event import TYPES

UPDATES, WIDTH = 12, 20_000
#: Weights and data of a size that a document never has.
BIG = 600 * KIB


def given(receiver: Receiver, name: str) -> dict[str, Any]:
    """A file in the store, as a job names it."""
    place = receiver.store.place(f"given/{name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(body_of(BIG))
    return {
        "url": receiver.store.get_url(f"given/{name}", seconds=600.0), "size": BIG,
        "sha256": sha256_file(place),
    }  # fmt: skip


def job_of(receiver: Receiver, job_id: str, **parts: Any) -> dict[str, Any]:
    """What the control plane writes: weights, dataset and outputs by URL."""
    return {
        "trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp", "job_id": job_id,
        "hyperparameters": {
            "updates": UPDATES, "rows": 64, "width": WIDTH, "microbatch": 4, "global_batch": 4,
            "checkpoint_every": 4, "checkpoints_kept": 1, **parts.pop("hyperparameters", {}),
        },
        "weights": {"base": {"files": [{"path": "model.safetensors", **given(receiver, "model.safetensors")}]}},
        "inputs": {"dataset": given(receiver, "rows.bin")},
        "outputs": {"grant_url": receiver.grant_url, "required": ["weights"], "checkpoints": True},
        "callbacks": {"url": f"{receiver.listener.url}/events", "mode": "control"}, **parts,
    }  # fmt: skip


def start(folder: Path, job: dict[str, Any], attempt: int) -> subprocess.Popen[bytes]:
    """A container's start: an empty directory, an empty cache, the job and the attempt; nothing else."""
    folder.mkdir()
    (folder / "job.json").write_text(json.dumps(job))
    own = {name: value for name, value in os.environ.items() if not name.startswith("APP_TRAINER_")}
    words = ["run", "--job", str(folder / "job.json"), "--job-dir", str(folder / "dir")]
    with (folder / "output").open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "app_trainer_sdk.cli", *words], stdout=output, stderr=output, cwd=folder,
            env={
                **own, "APP_TRAINER_CACHE_DIR": str(folder / "cache"), "APP_TRAINER_ATTEMPT": str(attempt),
                "APP_TRAINER_ALLOW_HOSTS": "127.0.0.1", "APP_TRAINER_CALLBACK_TOKEN": "the-token",
            },
        )  # fmt: skip


def kill_once_it_can_resume(receiver: Receiver, job_id: str, started: list[subprocess.Popen[bytes]]) -> None:
    """Kill the first start when the receiver has a checkpoint of it, before that is even answered."""
    answer = receiver.outputs.answer

    def answer_or_kill(body: bytes) -> Any:
        answered = answer(body)
        if len(started) == 1 and receiver.outputs.resume(job_id):
            started[0].kill()
        return answered

    receiver.outputs.answer = answer_or_kill  # type: ignore[method-assign]


def test_the_whole_way_on_an_empty_machine(tmp_path: Path):
    """Attempt 1 is killed once a checkpoint is over there; attempt 2 has nothing of it but the job.

    The artifact in the store is byte for byte that of a run which nobody touched, and what the listener's own
    API took or gave is documents.
    """
    with Receiver(tmp_path / "desk", token="the-token") as receiver:
        slow = {"hyperparameters": {"sleep_seconds": 0.15}}
        started: list[subprocess.Popen[bytes]] = []
        kill_once_it_can_resume(receiver, "killed", started)
        started.append(first := start(tmp_path / "first", job_of(receiver, "killed", **slow), 1))
        undisturbed = start(tmp_path / "undisturbed", job_of(receiver, "undisturbed"), 1)
        assert first.wait(150) == -signal.SIGKILL, (tmp_path / "first" / "output").read_text()
        resume = receiver.outputs.resume("killed")
        assert resume is not None
        second = start(tmp_path / "second", job_of(receiver, "killed", **slow, resume=resume), 2)
        started.append(second)

        assert second.wait(150) == 0, (tmp_path / "second" / "output").read_text()
        assert undisturbed.wait(150) == 0, (tmp_path / "undisturbed" / "output").read_text()
        events = receiver.desk.events("killed")
        plan = next(event for event in events if event["attempt"] == 2 and event["type"] == "job.plan")
        record = receiver.desk.jobs()["killed"]
        names = ("artifact", "weights", "model.safetensors")

        assert resume["step"] in (4, 8, 12)  # the newest, where an upload did not begin for long
        assert plan["resumed"] == resume["step"]
        rows = receiver.stored("rows", "run", "metrics.jsonl", job_id="killed").splitlines()
        assert [json.loads(row)["step"] for row in rows] == list(range(1, UPDATES + 1))
        assert record.state == "succeeded"
        assert record.output_bytes == len(receiver.stored(*names, job_id="killed"))
        assert receiver.stored(*names, job_id="killed") == receiver.stored(*names, job_id="undisturbed")
        assert receiver.listener.largest_body < 16 * KIB
        assert {event["type"] for event in events} <= {
            str(kind.model_fields["type"].annotation.__args__[0]) for kind in TYPES
        }
        assert max(size for _, size in receiver.taken()) > 100 * KIB
