"""The listener's HTTP: events, models, jobs and uploads."""

from __future__ import annotations

import base64
import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk.callbacks.signature import signature_headers
from app_trainer_sdk.listener import Desk, Fault, Listener

EVENT = json.dumps(
    {"v": 1, "id": "j.1.1", "job_id": "j", "attempt": 1, "instance": "i", "seq": 1, "type": "job.accepted"}
).encode()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    """A listener on a free port."""
    with Listener(Desk(tmp_path / "desk")) as server:
        yield server


def ask(
    listener: Listener, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*listener.server_address[:2], timeout=60)
    connection.request(
        method, path, body=body, headers={key.replace("_", "-"): each for key, each in headers.items()}
    )
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    is_json = answer.headers.get("Content-Type") == "application/json"
    return answer.status, json.loads(data) if is_json and data else data


def test_an_event_is_heard_and_shown(listener: Listener):
    """Posted to /events or anything below it; the record is there to look at."""
    status, answer = ask(listener, "POST", "/events/hook?x=1", EVENT)

    assert (status, answer["ack"], answer["next_seq"]) == (200, 1, 2)
    assert ask(listener, "GET", "/api/training/jobs/j")[1]["state"] == "running"
    assert set(ask(listener, "GET", "/api/training/jobs")[1]) == {"j"}
    assert ask(listener, "GET", "/api/training/jobs/k")[0] == 404
    assert ask(listener, "POST", "/events", b"{}")[0] == 422
    assert ask(listener, "POST", "/events", b" " * 70_000)[0] == 413


def test_models_are_what_describe_prints(listener: Listener, capsys: pytest.CaptureFixture[str]):
    """Byte for byte what a container would serve."""
    from app_trainer_sdk.describe import main

    main([])

    assert ask(listener, "GET", "/api/training/models") == (200, json.loads(capsys.readouterr().out))


def test_faults_come_in_order_and_then_stop(listener: Listener):
    """A status, a delay, no answer at all; nothing of a faulty answer was heard."""
    listener.desk.line_up(map(Fault.parse, ("503/7", "away", "delay=0.01")))

    assert ask(listener, "POST", "/events", EVENT)[0] == 503
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        ask(listener, "POST", "/events", EVENT)
    assert listener.desk.jobs() == {}
    assert ask(listener, "POST", "/events", EVENT)[1]["ack"] == 1
    assert ask(listener, "POST", "/events", EVENT)[0] == 200


def test_only_who_has_the_token_and_signs_is_heard(tmp_path: Path):
    """401 without the token, without a signature, with another's, with one that is too old."""
    key, now = b"k" * 24, int(time.time())

    def signed(seconds: int, secret: bytes = key) -> dict[str, str]:
        headers = {"webhook-id": "j.1.1", **signature_headers([secret], "j.1.1", EVENT, seconds=seconds)}
        return {**headers, "Authorization": "Bearer desk-token"}

    lines = list[str]()
    with Listener(Desk(tmp_path, say=lines.append), token="desk-token", keys=[key]) as server:
        wrong = [signed(now - 400), signed(now, b"x" * 24), {"Authorization": "Bearer desk-token"}, {}]
        wrong.append({**signed(now), "Authorization": "Bearer another"})

        assert [ask(server, "POST", "/events", EVENT, **each)[0] for each in wrong] == [401] * 5
        assert lines[0] == "POST /events j.1.1 answered 401: token or signature"
        assert (len(lines), "desk-token" in str(lines)) == (5, False)
        assert ask(server, "POST", "/events", EVENT, **signed(now))[0] == 200
        assert ask(server, "PUT", "/uploads/a", b"x")[0] == 401
    assert base64.b64encode(key)  # a key is bytes here; the option takes whsec_ and base64


def test_uploads_lie_in_the_folder(listener: Listener):
    """Whole, below it and nowhere else; a sender that goes away leaves nothing."""
    data = bytes(range(256)) * 5000

    assert ask(listener, "PUT", "/uploads/j/artifacts/a%20b.bin", data) == (201, {"bytes": len(data)})
    assert (listener.desk.uploads / "j" / "artifacts" / "a b.bin").read_bytes() == data
    assert ask(listener, "GET", "/uploads/j/artifacts/a%20b.bin") == (200, data)
    assert ask(listener, "HEAD", "/uploads/j/artifacts/a%20b.bin") == (200, b"")
    assert ask(listener, "PUT", "/uploads/%2e%2e/escaped", b"x")[0] == 400
    connection = http.client.HTTPConnection(*listener.server_address[:2])
    connection.putrequest("PUT", "/uploads/cut")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"half")
    connection.close()
    deadline = time.monotonic() + 60
    while any(listener.desk.uploads.glob(".part-*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ask(listener, "GET", "/uploads/cut")[0] == 404
