"""Sending folders of a job: which files in which order, and how hard it tries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loopback import free
from receivers import Receiver, upload_tools

from app_trainer_sdk.errors import UploadFailed
from app_trainer_sdk.job import Job
from app_trainer_sdk.outputs.sender import WAIT_SECONDS, Sender, build_sender
from app_trainer_sdk.transfers.effort import Effort
from app_trainer_sdk.transfers.grants import GrantClient, OwnTargets
from app_trainer_sdk.transfers.progress import NO_LISTENER


class Noting:
    """Keeps what was granted, and takes everything for verified."""

    def __init__(self) -> None:
        self.files: list[Any] = []

    def grant(self, file: Any) -> Any:
        from app_trainer_sdk.transfers.grants import Offer

        self.files.append(file)
        return Offer(verified=True)


def checkpoint(folder: Path) -> Path:
    for name in ("manifest.json", "state.json", "model/part.safetensors"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"12345")
    return folder


def test_a_manifest_goes_last_and_says_what_is_needed(tmp_path: Path):
    """A folder that was sent in part is none: its manifest is what makes it one."""
    grants: Any = Noting()
    sent = Sender(grants, upload_tools()).send(
        "checkpoint", "step-2", checkpoint(tmp_path), check=free, told=NO_LISTENER, needs=("step-1",)
    )

    assert sent == 15
    assert [(each.path, each.needs) for each in grants.files] == [
        ("model/part.safetensors", ()), ("state.json", ()), ("manifest.json", ("step-1",)),
    ]  # fmt: skip


def test_some_files_or_none(tmp_path: Path):
    """A folder without any is no artifact."""
    grants: Any = Noting()
    sender = Sender(grants, upload_tools())
    sender.send(
        "artifact",
        "weights",
        checkpoint(tmp_path / "there"),
        check=free,
        told=NO_LISTENER,
        paths=["state.json"],
    )

    assert [each.path for each in grants.files] == ["state.json"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UploadFailed, match="has no files"):
        sender.send("artifact", "weights", tmp_path / "empty", check=free, told=NO_LISTENER)


def test_training_does_not_feel_it_and_at_its_end_it_hurries(monkeypatch: pytest.MonkeyPatch):
    """One connection at a bounded rate; then all of them, and the parts under way go faster too."""
    monkeypatch.setenv("APP_TRAINER_UPLOAD_BYTES_PER_SECOND", "1000")
    grants: Any = Noting()
    background = Sender(grants, upload_tools()).beside_training()
    before = (background.tools.effort.connections, background.tools.throttle.rate)
    hurried = background.in_a_hurry()

    assert before == (1, 1000.0)
    assert hurried.tools.effort.connections == Effort().connections
    assert background.tools.throttle.rate == 0.0
    assert hurried.patient_for(2.0).tools.effort.give_up_seconds == 2.0


def test_what_a_job_asks_for(receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    """A control plane that grants, the job's own URLs (whose stores want an MD5), or no uploads at all."""
    monkeypatch.delenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", raising=False)

    def built(**outputs: Any) -> Any:
        return build_sender(Job.model_validate({"trainer": "t", "model": "m", "outputs": outputs}), 1)

    granted, own = (
        built(grant_url=receiver.grant_url),
        built(put={"weights/a": "https://store.example/a?sig=s"}),
    )

    assert isinstance(granted.grants, GrantClient)
    assert not granted.md5
    assert isinstance(own.grants, OwnTargets)
    assert own.md5
    assert own.tools.effort.give_up_seconds == WAIT_SECONDS
    assert built() is None
