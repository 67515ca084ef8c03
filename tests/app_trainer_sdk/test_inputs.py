"""Inputs and weights become local, whole and verified, or are refused with the setting to change."""

from __future__ import annotations

import hashlib
import io
import logging
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import lying_server
import pytest
from loopback import free, reply, reserved_port

from app_trainer_sdk import ModelRow, WeightSource
from app_trainer_sdk.errors import (
    BadData,
    BadJob,
    DependencyUnavailable,
    ExitCode,
    InputMissing,
    StopRequested,
    TrainerError,
)
from app_trainer_sdk.inputs import fetch, fetch_inputs, local_path
from app_trainer_sdk.job import ArchiveLimits, FileReference, read_job
from app_trainer_sdk.weights import fetch_weights

BODY = bytes(range(256)) * 5000
SHA256 = hashlib.sha256(BODY).hexdigest()
SECRET = "?signature=VerySecret"


def get(url: str, folder: Path, *, check: Any = free, **known: Any) -> Path:
    return fetch(
        FileReference(url=url, **known),
        folder,
        setting="/inputs/dataset",
        check=check,
        tools=lying_server.tools(),
    )


def job(**parts: Any) -> Any:
    return read_job({"trainer": "t", "model": "m", **parts})


def row(**source: Any) -> ModelRow:
    return ModelRow("m", "M", 1, weights={"base": WeightSource(revision="r1", **source)})


def names(folder: Path) -> list[str]:
    return sorted(each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file())


def test_paths_and_file_urls_are_used_in_place(tmp_path: Path):
    """A file, a folder, and a URL with escaped characters; nothing is copied."""
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "rows.jsonl").write_text("x")

    assert tmp_path / "a b" / "rows.jsonl" == get(str(tmp_path / "a b" / "rows.jsonl"), tmp_path / "in")
    assert tmp_path / "a b" == get(str(tmp_path / "a b"), tmp_path / "in")
    url = (tmp_path / "a b" / "rows.jsonl").as_uri()
    assert tmp_path / "a b" / "rows.jsonl" == get(url, tmp_path / "in") == local_path(url, "/x")
    assert not (tmp_path / "in").exists()


def test_what_is_not_there_is_told_with_its_input(tmp_path: Path):
    """Exit code 66, the path and the setting."""
    with pytest.raises(InputMissing, match="/inputs/dataset") as caught:
        get(str(tmp_path / "rows.jsonl"), tmp_path)

    assert (caught.value.code, "rows.jsonl" in str(caught.value)) == (ExitCode.INPUT_MISSING, True)


def test_what_the_job_knows_of_a_local_file_is_verified(tmp_path: Path):
    """Size and digest: both values are in the message; a folder has neither."""
    path = tmp_path / "rows"
    path.write_bytes(BODY)

    assert path == get(str(path), tmp_path, size=len(BODY), sha256=SHA256)
    with pytest.raises(BadJob, match="rows has 1280000 bytes; expected 3 bytes"):
        get(str(path), tmp_path, size=3)
    with pytest.raises(BadJob, match=f"the sha256 {SHA256}; expected 0+; change /inputs/dataset/sha256"):
        get(str(path), tmp_path, sha256="0" * 64)
    with pytest.raises(BadJob, match="is a folder, and size and sha256 describe one file"):
        get(str(tmp_path), tmp_path, size=3)


def test_a_download_is_verified_and_kept(tmp_path: Path, serve: Any):
    """It gets the URL's file name; a second start finds it there; nothing lies beside it."""
    server = serve(lambda handler, request: reply(handler, body=BODY))
    asked = []
    for _ in range(2):
        path = get(f"{server.url}/a/rows%20one.jsonl{SECRET}", tmp_path / "in", size=len(BODY), sha256=SHA256)
        asked.append(len(server.received))

    assert tmp_path / "in" / "rows one.jsonl" == path
    assert path.read_bytes() == BODY
    assert names(tmp_path) == ["in/rows one.jsonl"]
    assert {f"/a/rows%20one.jsonl{SECRET}"} == {request.path for request in server.received}
    assert asked[0] == asked[1]


def test_all_inputs_have_folders_of_their_own(tmp_path: Path, serve: Any):
    """Two URLs that end alike do not meet."""
    server = serve(lambda handler, request: reply(handler, body=request.path.encode()))
    inputs = {"dataset": f"{server.url}/a/rows", "controls": f"{server.url}/b/rows", "empty": f"{server.url}/"}
    paths = fetch_inputs(job(inputs=inputs), tmp_path, free)

    assert {name: path.read_bytes() for name, path in paths.items()} == {
        "dataset": b"/a/rows",
        "controls": b"/b/rows",
        "empty": b"/",
    }
    assert paths["empty"] == tmp_path / "empty" / "input"


@pytest.mark.parametrize("last", ["..", "%2e%2e", ".", "a%00b", "x" * 1000, "..%2f..%2fescaped"])
def test_a_name_from_a_url_stays_in_its_folder(tmp_path: Path, serve: Any, last: str):
    """Whatever the last part of the path is, the file lies directly in the input's folder."""
    server = serve(lambda handler, request: reply(handler, body=b"x"))
    path = get(f"{server.url}/a/{last}", tmp_path / "in")

    assert path.is_file()
    assert tmp_path / "in" == path.parent


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (404, InputMissing, 66),
        (403, InputMissing, 66),
        (410, InputMissing, 66),
        (500, DependencyUnavailable, 69),
        (503, DependencyUnavailable, 69),
    ],
)
def test_what_a_server_refuses(tmp_path: Path, serve: Any, status: int, kind: type[TrainerError], code: int):
    """Gone is the user's 66, out of order is a later try's 69; the query is in no message."""
    server = serve(lambda handler, request: reply(handler, status))
    with pytest.raises(kind) as caught:
        get(f"{server.url}/rows{SECRET}", tmp_path)

    assert code == caught.value.code
    assert f"{server.url}/rows answered {status}" in str(caught.value)
    assert "Secret" not in str(caught.value)
    assert names(tmp_path) == []


def test_a_wrong_body_never_gets_the_name(tmp_path: Path, serve: Any):
    """Size and digest are looked at before the rename; the next start asks again and gets the right one."""
    body = b""
    server = serve(lambda handler, request: reply(handler, body=body))
    for said, found in ((b"wrong", "5 bytes"), (BODY[:-1] + b"!", "the sha256")):
        body = said
        with pytest.raises(BadJob, match=found) as caught:
            get(f"{server.url}/rows{SECRET}", tmp_path, size=len(BODY), sha256=SHA256)
        assert not (tmp_path / "rows").exists()
        assert "Secret" not in str(caught.value)
    body = BODY

    assert get(f"{server.url}/rows{SECRET}", tmp_path, size=len(BODY), sha256=SHA256).read_bytes() == BODY


def test_a_file_that_rotted_is_fetched_again(tmp_path: Path, serve: Any):
    """What an earlier start left is used only when it is still what the job says."""
    server = serve(lambda handler, request: reply(handler, body=BODY))
    path = get(f"{server.url}/rows", tmp_path, sha256=SHA256)
    path.write_bytes(b"rotten")

    assert get(f"{server.url}/rows", tmp_path, sha256=SHA256).read_bytes() == BODY


@pytest.mark.parametrize("chunked", [False, True])
def test_an_interrupted_body_leaves_nothing(tmp_path: Path, serve: Any, chunked: bool):
    """CASES K1: cut in the middle, with a length or in chunks: 69, and no file under the final name."""

    def answer(handler: Any, request: Any) -> None:
        handler.send_response(200)
        if chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        else:
            handler.send_header("Content-Length", str(len(BODY)))
        handler.end_headers()
        handler.wfile.write(b"3e8\r\n" + BODY[:1000] + b"\r\n" if chunked else BODY[:1000])
        handler.close_connection = True

    server = serve(answer)
    with pytest.raises(DependencyUnavailable) as caught:
        get(f"{server.url}/rows{SECRET}", tmp_path)

    assert (caught.value.code, "Secret" in str(caught.value)) == (ExitCode.DEPENDENCY_UNAVAILABLE, False)
    assert names(tmp_path) == []


def test_a_server_that_is_not_there(tmp_path: Path, serve: Any, caplog: pytest.LogCaptureFixture):
    """69; the query is neither in the message nor in the log of a library."""
    caplog.handler.level = logging.DEBUG
    with reserved_port() as port, pytest.raises(DependencyUnavailable) as caught:
        get(f"http://127.0.0.1:{port}/rows{SECRET}", tmp_path)

    assert "Secret" not in str(caught.value) + caplog.text
    assert names(tmp_path) == []


def test_redirects_are_followed_but_not_for_ever(tmp_path: Path, serve: Any):
    """A store may hand on; a circle ends as 69."""

    def answer(handler: Any, request: Any) -> None:
        if request.path == "/rows":
            reply(handler, 302, Location="/there")
        elif request.path == "/circle":
            reply(handler, 302, Location="/circle")
        else:
            reply(handler, body=b"x")

    server = serve(answer)

    assert get(f"{server.url}/rows", tmp_path).read_bytes() == b"x"
    with pytest.raises(DependencyUnavailable):
        get(f"{server.url}/circle", tmp_path)
    assert len(server.received) < 20


def test_a_wish_to_stop_is_noticed_on_a_slow_line(tmp_path: Path, serve: Any):
    """CASES L4: a trickle far below a megabyte; the download ends within a moment and leaves nothing."""
    trickles = threading.Event()

    def answer(handler: Any, request: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not server.released.is_set():
            handler.wfile.write(b"x")
            time.sleep(0.01)
            trickles.set()

    server = serve(answer)

    def check() -> None:
        if trickles.is_set():
            raise StopRequested("interrupted")

    started = time.monotonic()
    with pytest.raises(StopRequested):
        get(f"{server.url}/rows", tmp_path, check=check)

    assert time.monotonic() - started < 60.0
    assert names(tmp_path) == []


def test_an_archive_is_the_folder_it_becomes(tmp_path: Path, serve: Any):
    """Local or downloaded; broken ones are 65, folders and wrong limits are told with the input."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("rows/one.jsonl", "{}")
    (tmp_path / "a.zip").write_bytes(packed.getvalue())
    server = serve(lambda handler, request: reply(handler, body=packed.getvalue()))
    for url in (str(tmp_path / "a.zip"), f"{server.url}/b.zip?sig=x"):
        folder = get(url, tmp_path / "in", kind="zip")

        assert (folder / "rows" / "one.jsonl").read_text() == "{}"
    with pytest.raises(BadData, match=r"limits/max_bytes\); change /inputs/dataset"):
        get(
            str(tmp_path / "a.zip"),
            tmp_path / "other",
            kind="zip",
            limits=ArchiveLimits(max_files=1, max_bytes=1),
        )
    with pytest.raises(BadData, match="cannot be unpacked"):
        get(str(tmp_path / "a.zip"), tmp_path / "other", kind="tar")
    with pytest.raises(BadJob, match="is a folder"):
        get(str(tmp_path), tmp_path / "other", kind="tar")


def test_a_job_cannot_reach_into_the_platforms_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """64 with the platform's setting, for inputs and weights alike."""
    monkeypatch.delenv("APP_TRAINER_ALLOW_HOSTS")
    url = "http://169.254.169.254/latest/meta-data"
    with pytest.raises(BadJob, match="change /inputs/dataset, or the platform's APP_TRAINER_ALLOW_HOSTS"):
        fetch_inputs(job(inputs={"dataset": url}), tmp_path, free)
    with pytest.raises(BadJob, match="change /weights/base, or the platform's APP_TRAINER_ALLOW_HOSTS"):
        fetch_weights(job(weights={"base": url}), row(), tmp_path, free)
