"""What a control plane answers to an uploader is checked, and each refusal means one thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loopback import free, reply
from receivers import web, written

from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.errors import Fenced, StopRequested, UploadFailed
from app_trainer_sdk.transfers.faults import Busy, Fault
from app_trainer_sdk.transfers.grants import GrantClient
from app_trainer_sdk.transfers.outgoing import Outgoing, examine

Answering = Callable[..., GrantClient]


@pytest.fixture
def answering(serve: Any) -> Answering:
    """A client whose control plane always gives one answer."""

    def build(status: int = 200, body: bytes = b"{}", **headers: str) -> GrantClient:
        url = serve(lambda handler, request: reply(handler, status, body, **headers)).url
        return GrantClient(
            f"{url}/g?key=a-secret", job_id="j", attempt=2, credentials=Credentials({}), web=web()
        )

    return build


@pytest.fixture
def file(tmp_path: Path) -> Outgoing:
    """A small file."""
    return examine(written(tmp_path, 10), kind="artifact", name="n", path="a", check=free)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (409, b'{"attempt": 3}', Fenced),
        (409, b'{"attempt": 2}', Fault),
        (409, b"<html>", Fault),
        (410, b"", StopRequested),
        (422, b'{"error": "no such artifact"}', UploadFailed),
        (401, b"", Fault),
        (404, b"", Fault),
        (503, b"", Busy),
        (500, b"", Fault),
        (302, b"", Fault),
        (200, b"<html>", Fault),
        (200, b"[]", Fault),
        (200, b"{}", Fault),
        (200, b'{"state": "later", "upload_id": "u"}', Fault),
        (200, b'{"state": "put", "upload_id": "u"}', Fault),
        (200, b'{"state": "put", "upload_id": "u", "url": "http://[x?a-secret"}', Fault),
        (200, b'{"state": "put", "upload_id": "u", "url": "http://x:99999"}', Fault),
        (200, b'{"state": "put", "upload_id": "u", "url": "ftp://x"}', Fault),
        (200, b'{"state": "put", "upload_id": "u", "url": "http://x", "headers": ["a"]}', Fault),
        (200, b'{"state": "put", "upload_id": "u", "url": "http://x", "expires_s": "soon"}', Fault),
    ],
)
def test_each_answer_means_one_thing(
    answering: Answering, file: Outgoing, status: int, body: bytes, error: type[BaseException]
):
    """A proxy's page is no grant; a 409 fences only with a newer attempt; a secret in the URL is not told."""
    with pytest.raises(error) as told:
        answering(status, body).grant(file)

    assert "a-secret" not in str(told.value)


def test_a_grant_has_what_it_says(answering: Answering, file: Outgoing):
    """URL, signed headers and seconds until it expires; or none, for ever."""
    grant = {"state": "put", "upload_id": "u", "url": "http://x/y", "headers": {"a": "b"}, "expires_s": 9}
    target = answering(body=json.dumps(grant).encode()).grant(file).put
    for_ever = answering(body=json.dumps({**grant, "expires_s": None}).encode()).grant(file).put

    assert target is not None
    assert (target.url, target.headers, target.expires_s) == ("http://x/y", {"a": "b"}, 9.0)
    assert "http://x/y" not in repr(target)
    assert for_ever is not None
    assert for_ever.expires_s is None


@pytest.mark.parametrize(
    "parts", [5, None, [1], [[1]], [{"number": "x"}], [{"number": None, "url": "http://x", "sha256": ""}]]
)
def test_parts_in_another_form_are_a_fault_of_the_receiver(answering: Answering, parts: Any):
    """It is asked again; the run does not end because somebody else has a bug."""
    client = answering(body=json.dumps({"parts": parts}).encode())
    with pytest.raises(Fault, match=r"the answer to (parts|list)"):
        client.parts("u", [])
    with pytest.raises(Fault, match="the answer to list"):
        client.stored("u")


def test_what_a_receiver_did_not_verify_it_says_why(answering: Answering):
    """Anything but verified is not."""
    assert answering(body=b'{"state": "verified"}').complete("u") == ""
    assert answering(body=b'{"state": "refused", "reason": "9 bytes"}').complete("u") == "9 bytes"
    assert answering(body=b'{"state": "pending"}').complete("u") == "not verified"
