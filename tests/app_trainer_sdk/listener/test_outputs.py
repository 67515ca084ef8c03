"""What the listener grants: idempotent, fenced, verified, and remembered over a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from receivers import Receiver, send, upload_tools, written

from app_trainer_sdk.listener import Outputs

FILE = {"kind": "artifact", "name": "n", "path": "a", "size": 10, "sha256": "ab" * 32, "part_bytes": 4}


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A listener with its store."""
    with Receiver(tmp_path / "desk") as there:
        yield there


def ask(receiver: Receiver, what: str, **facts: Any) -> tuple[int, dict[str, Any]]:
    document = {"v": 1, "job_id": "j", "attempt": 1, "do": what, **facts}
    return receiver.outputs.answer(json.dumps(document).encode())


def test_a_question_asked_twice_has_one_answer(receiver: Receiver):
    """The same file is the same upload; another digest is another."""
    (_, one), (_, two) = ask(receiver, "grant", **FILE), ask(receiver, "grant", **FILE)
    _, other = ask(receiver, "grant", **{**FILE, "sha256": "cd" * 32})

    assert one["state"] == "parts"
    assert one["upload_id"] == two["upload_id"] != other["upload_id"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "../a"}, {"name": "/etc"}, {"kind": "other"}, {"sha256": "xy"}, {"size": -1},
        {"job_id": "../x"}, {"do": "delete"}, {"attempt": "1"},
    ],
)  # fmt: skip
def test_what_is_no_question_is_refused(receiver: Receiver, wrong: dict[str, Any]):
    """With 422, and nothing is granted."""
    status, _ = receiver.outputs.answer(
        json.dumps({"v": 1, "job_id": "j", "attempt": 1, "do": "grant", **FILE, **wrong}).encode()
    )

    assert status == 422
    assert receiver.outputs.answer(b"no JSON")[0] == 422
    assert receiver.outputs.answer(b"[]")[0] == 422


def test_parts_come_in_batches_and_an_upload_belongs_to_its_job(receiver: Receiver):
    """At most sixteen at once; who asks for another job's upload gets none."""
    upload = ask(receiver, "grant", **FILE)[1]["upload_id"]
    parts = [{"number": number, "size": 4, "sha256": "ab" * 32} for number in range(1, 18)]

    assert ask(receiver, "parts", upload_id=upload, parts=parts)[0] == 422
    assert len(ask(receiver, "parts", upload_id=upload, parts=parts[:16])[1]["parts"]) == 16
    assert ask(receiver, "parts", upload_id=upload, parts=parts[:1], job_id="k")[0] == 404
    assert ask(receiver, "list", upload_id="00" * 16)[0] == 404
    assert ask(receiver, "complete", upload_id="00" * 16)[0] == 404


def test_what_was_verified_is_remembered(tmp_path: Path, receiver: Receiver):
    """By a listener that was started anew, too; a completed upload may be completed again."""
    send(written(tmp_path, 10), receiver.client(), upload_tools())
    again = Outputs(receiver.desk, receiver.store)
    (row,) = again.verified("j")
    asked = {name: row[name] for name in ("kind", "name", "path", "size", "sha256")}

    assert ask(receiver, "grant", **asked, part_bytes=4)[1]["state"] == "verified"
    assert again.resume("j") is None
    assert again.verified("../j") == []
