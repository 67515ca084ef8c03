"""Whatever happens on the way: an upload ends once the receiver verified it, or with a clear error."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import reply
from lying_server import body_of
from receivers import (
    KIB,
    Flaky,
    QuickClock,
    Receiver,
    S3Receiver,
    gated,
    moto,
    send,
    upload_tools,
    web,
    written,
)  # fmt: skip

from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.errors import Fenced, StopRequested, UploadFailed
from app_trainer_sdk.listener.desk import DROPPED, SILENT
from app_trainer_sdk.listener.desk import Fault as Told
from app_trainer_sdk.transfers.addresses import Guard
from app_trainer_sdk.transfers.faults import Busy, Fault
from app_trainer_sdk.transfers.grants import GrantClient, OwnTargets
from app_trainer_sdk.transfers.pauses import RealClock
from app_trainer_sdk.transfers.web import Web

SIZE = 300 * KIB  # five parts
NAME = "weights.safetensors"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Receiver]:
    """A real S3 implementation in a process of its own."""
    with moto() as url:
        yield S3Receiver(url)


@pytest.mark.parametrize("size", [0, 1, 64 * KIB, 64 * KIB + 1, SIZE])
def test_what_was_sent_is_stored_and_verified(tmp_path: Path, receiver: Receiver, size: int):
    """In one piece or in parts; asked again it is verified at once, and nothing is sent."""
    path = written(tmp_path, size)
    for _ in range(2):
        send(path, receiver.client(), upload_tools())

    assert receiver.stored("artifact", "adapter", NAME) == body_of(size)
    assert sum(bytes_ for _, bytes_ in receiver.taken()) == size
    (row,) = receiver.outputs.verified("j")
    assert (row["kind"], row["name"], row["path"], row["size"]) == ("artifact", "adapter", NAME, size)
    assert receiver.listener.largest_body < 4 * KIB


def test_a_real_s3_takes_one_piece(tmp_path: Path, s3: S3Receiver):
    """Presigned by boto3 with length and checksum among the signed headers."""
    path = written(tmp_path, 100 * KIB, "one.bin")
    send(path, s3, upload_tools(part_bytes=5 << 20))

    assert s3.read("adapter/one.bin") == body_of(100 * KIB)
    assert {"content-length", "x-amz-checksum-sha256"} <= s3.signed


def test_a_real_s3_takes_parts_and_only_those_that_are_missing(tmp_path: Path, s3: S3Receiver):
    """S3 multipart: a part that an earlier process sent is found by listing and not sent again."""
    path, size = written(tmp_path, 11 << 20, "parts.bin"), 11 << 20
    tools, first = upload_tools(part_bytes=5 << 20), 0

    def stop() -> None:
        nonlocal first
        first = len(s3.stored("adapter/parts.bin")) if "adapter/parts.bin" in s3.ids else 0
        if first:
            raise StopRequested("interrupted")

    with pytest.raises(StopRequested):
        send(path, s3, gated(upload_tools(part_bytes=5 << 20, connections=1), 5 << 20), check=stop)
    meter = send(path, s3, tools)

    assert s3.read("adapter/parts.bin") == body_of(size)
    assert first == 1
    assert meter._reused == 5 << 20


def test_bytes_that_changed_after_they_were_read_are_never_verified(tmp_path: Path, s3: S3Receiver):
    """What was announced is the file as it was read; other bytes are refused by its receiver."""
    path = written(tmp_path, 50 * KIB, "changed.bin")

    class Changing(S3Receiver):
        def __init__(self) -> None:
            self.__dict__.update(s3.__dict__)

        def grant(self, file: Any) -> Any:
            path.write_bytes(b"x" * file.size)
            return super().grant(file)

    with pytest.raises(UploadFailed, match="refused 4 times"):
        send(path, Changing(), upload_tools(part_bytes=5 << 20))


@settings(max_examples=12, deadline=None)
@given(st.lists(st.sampled_from([200, 403, 408, 429, 500, 503, 507, DROPPED]), max_size=12))
def test_any_sequence_of_troubles_ends_with_the_right_file(
    tmp_path_factory: pytest.TempPathFactory, troubles: list[int]
):
    """A store may even say 200 and keep nothing: the receiver is asked, and what is missing goes again."""
    folder = tmp_path_factory.mktemp("troubles")
    with Receiver(folder / "desk") as receiver:
        receiver.store.faults.extend(map(Told, troubles))
        tools = upload_tools(restarts=12, give_up_seconds=1000.0)
        send(written(folder, SIZE), receiver.client(), tools)

        assert receiver.stored("artifact", "adapter", NAME) == body_of(SIZE)
        assert len(receiver.outputs.verified("j")) == 1


def test_a_control_plane_that_has_its_troubles_is_asked_again(tmp_path: Path, receiver: Receiver):
    """It starts, or asks for patience."""
    client = Flaky(receiver.client(), Fault("away"), Busy("busy", 7.0), Fault("away"))
    clock = QuickClock()
    send(written(tmp_path, SIZE), client, upload_tools(clock=clock))

    assert receiver.stored("artifact", "adapter", NAME) == body_of(SIZE)
    assert clock.at >= 7.0


def test_a_disk_that_is_full_over_there_ends_the_tries(tmp_path: Path):
    """Bounded in time and tries; what was taken is kept, and with room again only the rest is sent."""
    with Receiver(tmp_path / "desk", quota=150 * KIB) as receiver:
        path, tools = written(tmp_path, SIZE), upload_tools(give_up_seconds=5.0, connections=1)
        with pytest.raises(UploadFailed, match="answered 507"):
            send(path, receiver.client(), tools)
        before = receiver.taken()
        receiver.store.quota = 0
        send(path, receiver.client(), tools)

        assert [number for number, _ in before] == ["1", "2"]
        assert sorted(number for number, _ in receiver.taken()) == ["1", "2", "3", "4", "5"]


def test_a_receiver_that_never_verifies_is_not_believed(tmp_path: Path, receiver: Receiver):
    """What is not verified is not uploaded, however often it was sent."""

    class Doubting(Flaky):
        def complete(self, upload_id: str) -> str:
            return "another digest"

    with pytest.raises(UploadFailed, match=r"refused 4 times: .*another digest"):
        send(written(tmp_path, 10), Doubting(receiver.client()), upload_tools())


@pytest.mark.parametrize("size", [10, SIZE])
@pytest.mark.parametrize("status", [404, 500, 206])
def test_bytes_that_are_taken_again_and_again_are_no_way_on(tmp_path: Path, serve: Any, size: int, status: int):
    """The store takes everything and nobody confirms it: it ends, as when nothing is taken at all."""

    def answer(handler: Any, request: Any) -> None:
        asked = {"do": "complete"} if handler.command == "PUT" else json.loads(request.body)
        said = {
            "grant": {"state": "put" if size < SIZE else "parts", "upload_id": "u", "url": server.url},
            "parts": {"parts": [{**each, "url": server.url} for each in asked.get("parts", ())]},
            "list": {"parts": []},
            "complete": {},
        }  # fmt: skip
        confirms = asked["do"] == "complete" and handler.command == "POST"
        reply(handler, status if confirms else 200, json.dumps(said[asked["do"]]).encode())

    server = serve(answer)
    server.RequestHandlerClass.do_PUT = server.RequestHandlerClass.do_GET
    client = GrantClient(server.url, job_id="j", attempt=1, credentials=Credentials({}), web=web())
    with pytest.raises(UploadFailed, match=f"answered {status}"):
        send(written(tmp_path, size), client, upload_tools())


def test_what_is_wrong_in_the_store_is_found_when_all_is_there(tmp_path: Path, receiver: Receiver):
    """The receiver reads what it has before it says verified; then the file goes once more."""
    rot = True

    class Rotting(Flaky):
        def complete(self, upload_id: str) -> str:
            nonlocal rot
            for part in (receiver.store.parts / upload_id).glob("2-*" if rot else "none"):
                part.write_bytes(b"x" * part.stat().st_size)
            rot = False
            return str(super().__getattr__("complete")(upload_id))

    send(written(tmp_path, SIZE), Rotting(receiver.client()), upload_tools())

    assert receiver.stored("artifact", "adapter", NAME) == body_of(SIZE)


def test_an_older_attempt_is_fenced_and_a_job_that_is_gone_canceled(tmp_path: Path, receiver: Receiver):
    """409 with a newer attempt and 410 end the upload at once."""
    event = {"v": 1, "id": "j.2.1", "job_id": "j", "attempt": 2, "instance": "i", "seq": 1}
    receiver.desk.hear(json.dumps({**event, "type": "job.accepted"}).encode())
    with pytest.raises(Fenced, match="attempt 2"):
        send(written(tmp_path, 10), receiver.client(attempt=1), upload_tools())

    receiver.outputs.answer = lambda body: (410, {})  # type: ignore[method-assign]
    with pytest.raises(StopRequested, match="canceled"):
        send(written(tmp_path, 10), receiver.client(attempt=2), upload_tools())


def test_the_bearer_token_is_sent_and_a_wrong_one_is_told(tmp_path: Path):
    """As callbacks have it; a token that is never right ends the tries."""
    with Receiver(tmp_path / "desk", token="right-token") as receiver:
        send(written(tmp_path, 10), receiver.client(token="right-token"), upload_tools())
        with pytest.raises(UploadFailed, match="answered 401"):
            send(written(tmp_path, 11), receiver.client(token="wrong-token"), upload_tools(give_up_seconds=2.0))

        assert len(receiver.outputs.verified("j")) == 1


@pytest.mark.parametrize("wait", ["store", "control plane", "pause", "throttle", "digest"])
def test_a_wish_to_stop_is_noticed_within_two_seconds(tmp_path: Path, receiver: Receiver, wait: str):
    """Whatever is waited for: an answer for thirty seconds, a pause, a pace of days, digests of a terabyte."""
    tools, released = upload_tools(silence=120.0, clock=RealClock()), threading.Event()
    path = written(tmp_path, SIZE)
    if wait == "store":
        receiver.store.faults.append(Told(SILENT))
    elif wait == "control plane":
        receiver.outputs.answer = lambda body: (released.wait(120.0), (500, {}))[1]  # type: ignore[method-assign]
    elif wait == "pause":
        receiver.outputs.answer = lambda body: (200, {})  # type: ignore[method-assign]
    elif wait == "throttle":
        tools.throttle.rate = 1.0
    else:
        os.truncate(path, 1 << 40)
    began = time.monotonic()

    def check() -> None:
        if time.monotonic() - began > 0.3:
            raise StopRequested("interrupted")

    with pytest.raises(StopRequested):
        send(path, receiver.client(), tools, check=check)
    seconds = time.monotonic() - began
    released.set()

    assert seconds < 60.0  # it takes half of one; more than two only where nobody gets a processor


def test_a_killed_upload_goes_on_where_it_was(tmp_path: Path, receiver: Receiver):
    """SIGKILL in the middle: the parts that the store had are not sent again by the next process."""
    path = written(tmp_path, SIZE)
    code = (
        "import sys, pathlib, receivers as r\n"
        "from app_trainer_sdk.callbacks.credentials import Credentials\n"
        "tools = r.gated(r.upload_tools(connections=1), 2 * 64 * 1024)\n"
        "client = r.GrantClient(sys.argv[1], job_id='j', attempt=1, credentials=Credentials({}), web=r.web())\n"
        "r.send(pathlib.Path(sys.argv[2]), client, tools)\n"
    )
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    child = subprocess.Popen(
        [sys.executable, "-c", code, receiver.grant_url, str(path)], env={**os.environ, "PYTHONPATH": paths}
    )
    deadline = time.monotonic() + 60.0
    while len(receiver.taken()) < 2:
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    before = len(receiver.taken())
    meter = send(path, receiver.client(), upload_tools())

    assert before == 2
    assert sorted(number for number, _ in receiver.taken()) == ["1", "2", "3", "4", "5"]
    assert meter._reused == before * 64 * KIB


def test_long_lived_urls_of_the_job_need_no_receiver(tmp_path: Path, serve: Any):
    """A PUT with length and Content-MD5; 2xx confirms, and a file without a URL is told."""
    server = serve(lambda handler, request: reply(handler, 201))
    server.RequestHandlerClass.do_PUT = server.RequestHandlerClass.do_GET
    grants = OwnTargets({f"adapter/{NAME}": f"{server.url}/put?sig=abc"})
    send(written(tmp_path, 1000), grants, upload_tools(), md5=True)
    with pytest.raises(UploadFailed, match="no URL for adapter/other"):
        send(written(tmp_path, 1000, "other"), grants, upload_tools(), md5=True)

    (request,) = server.received
    assert (request.method, request.body) == ("PUT", body_of(1000))
    assert request.headers["Content-MD5"]
    assert "Transfer-Encoding" not in request.headers


def test_a_name_of_the_platforms_own_network_is_refused_when_it_is_connected_to(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
):
    """Early checks look at addresses only. Once: no try after it can end otherwise; what lies there is kept."""
    server = serve(lambda handler, request: None)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *rest, **more: [(2, 1, 6, "", server.server_address)])
    grants = OwnTargets({f"adapter/{NAME}": f"http://store.example:{server.server_address[1]}/put?sig=secret"})
    tools = replace(upload_tools(), web=Web(Guard()))
    with pytest.raises(UploadFailed) as refused:
        send(written(tmp_path, 1000), grants, tools, md5=True)

    assert server.received == []
    assert str(refused.value) == (
        "store.example (127.0.0.1) is not an address of the public internet; expected a public host: a job "
        "must not reach into the platform's own network; change /outputs/put/adapter~1weights.safetensors, or "
        "the platform's APP_TRAINER_ALLOW_HOSTS to name store.example"
    )
