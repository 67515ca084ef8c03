"""A job with an address of the platform's network is refused before any work, each place with its pointer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk import pilot, run
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.job import read_job
from app_trainer_sdk.outputs import command as upload
from app_trainer_sdk.preflight import command as preflight
from app_trainer_sdk.transfers.hosts import check_hosts

TOY: dict[str, Any] = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}
FILE = {"path": "m.json", "size": 1, "sha256": "0" * 64}
PLACES = {
    "inputs": {"dataset": "http://127.0.0.2/rows", "more": "http://localhost/rows"},
    "weights": {
        "a": "http://0x7f.1/w",
        "b": {"files": [{**FILE, "urls": ["https://h/m", "http://10.0.0.1/m"]}]},
    },
    "resume": {"step": 1, "files": [{**FILE, "urls": ["http://169.254.169.254/m"]}]},
    "outputs": {"put": {"weights/model.bin": "http://[::1]/p?sig=very-secret"}},
}
POINTERS = [
    "/inputs/dataset", "/inputs/more", "/weights/a", "/weights/b/files/0", "/resume/files/0",
    "/outputs/put/weights~1model.bin",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _nobody_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("APP_TRAINER_ALLOW_HOSTS", raising=False)


def test_every_place_is_told_with_its_pointer_and_no_secret():
    """All at once, however the address is spelt."""
    with pytest.raises(BadJob, match="APP_TRAINER_ALLOW_HOSTS to name") as refused:
        check_hosts(read_job({**TOY, **PLACES}))

    assert [each.pointer for each in refused.value.problems] == POINTERS
    assert "very-secret" not in str(refused.value)


def test_the_control_plane_names_and_allowed_hosts_are_let_through(monkeypatch: pytest.MonkeyPatch):
    """Nothing is looked up; paths are no hosts; the platform's setting is obeyed."""
    control = {"outputs": {"grant_url": "http://10.0.0.1/g"}, "callbacks": "http://10.0.0.1/e"}
    check_hosts(read_job({**TOY, **control, "inputs": {"a": "rows.jsonl", "b": "https://store.internal/x"}}))
    monkeypatch.setenv("APP_TRAINER_ALLOW_HOSTS", "127.0.0.0/8,::1,localhost,10.0.0.1,169.254.169.254")
    check_hosts(read_job({**TOY, **PLACES}))


@pytest.mark.parametrize("main", [run.main, preflight.main], ids=["run", "preflight"])
def test_commands_refuse_where_outputs_cannot_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], main: Callable[[list[str]], int]
):
    """64 before training, not an upload that fails after it."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps({**TOY, "outputs": PLACES["outputs"]}))

    assert main(["--job", str(job), "--job-dir", str(tmp_path / "job")]) == 64
    assert "/outputs/put/weights~1model.bin: found ::1" in "".join(capsys.readouterr())


def test_an_upload_later_looks_at_nothing_but_where_outputs_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """64 before a byte is sent; what was fetched once may lie where this machine must not look."""
    outputs = {"put": {"weights/model.bin": "http://[::1]/p"}}
    job = {**TOY, "job_id": "j", "inputs": PLACES["inputs"], "outputs": outputs}
    (tmp_path / "job.json").write_text(json.dumps(job))
    code = upload.main([str(tmp_path)])
    told = "".join(capsys.readouterr())

    assert code == 64
    assert "/outputs/put/weights~1model.bin: found ::1" in told
    assert "/inputs" not in told


def test_a_pilot_refuses_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """It uploads nothing; what it fetches is looked at."""
    job = tmp_path / "job.json"
    job.write_text(json.dumps({**TOY, "weights": {"base": "http://127.0.0.2/w"}}))

    assert pilot.main(["--job", str(job), "--job-dir", str(tmp_path / "job")]) == 64
    assert "/weights/base" in "".join(capsys.readouterr())
