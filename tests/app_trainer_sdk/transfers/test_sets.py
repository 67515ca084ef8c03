"""Sets of files: small ones together, one place for equal ones, nothing when one of them is not to be had."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loopback import free
from lying_server import body_of, tools

from app_trainer_sdk.cache.weights import Cache
from app_trainer_sdk.errors import DiskFull, InputMissing, StopRequested
from app_trainer_sdk.transfers.progress import NoListener
from app_trainer_sdk.transfers.sets import cache_place, fetch_files
from app_trainer_sdk.transfers.wanted import Wanted


class Rows:
    """Keeps rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def transferring(self, text: str, done: int, total: int) -> None:
        """Nothing."""

    def transferred(self, row: dict[str, Any]) -> None:
        """Keep it."""
        self.rows.append(row)


def get(
    files: list[Wanted],
    cache: Cache,
    *,
    check: Callable[[], None] = free,
    told: Any = None,
    part_bytes: int = 64 * 1024,
    **more: Any,
) -> Any:
    return fetch_files(
        files, cache_place(cache), label="x", tools=tools(part_bytes=part_bytes), check=check,
        told=told or NoListener(), **more,
    )  # fmt: skip


def test_equal_files_come_once(tmp_path: Path, serve_body: Any):
    """By digest, whatever they are called; the next set finds them."""
    server, other = serve_body(body_of(1000)), serve_body(body_of(2000))
    wanted = [server.wanted(), Wanted("again", (server.url,), 1000, server.wanted().sha256), other.wanted()]
    files = [Wanted(f"{at}", each.urls, each.size, each.sha256) for at, each in enumerate(wanted)]
    rows = Rows()
    paths = get(files, Cache(tmp_path), told=rows)

    assert paths["0"] == paths["1"] != paths["2"]
    assert server.sent == 1000
    assert get(files, Cache(tmp_path), told=rows) == paths
    assert [(row["bytes"], row["reused_bytes"], row["files"]) for row in rows.rows] == [
        (3000, 0, 3),
        (0, 4000, 3),
    ]


def test_files_of_unknown_size_and_digest(tmp_path: Path, serve_body: Any):
    """They are asked for their size first, and kept under the digest they turn out to have."""
    server = serve_body(body_of(1000), ranges=False, lengths=False)
    paths = get([server.wanted(known=False)], Cache(tmp_path))

    assert paths["file"].name == hashlib.sha256(server.body).hexdigest()


def test_a_small_file_is_one_request(tmp_path: Path, serve_body: Any):
    """Parts would only wait for answers one after the other."""
    server = serve_body(body_of((8 << 20) - 1))
    get([server.wanted()], Cache(tmp_path), part_bytes=0)

    assert len(server.gets()) == 1


def test_the_disk_is_asked_for_all_of_them(tmp_path: Path, serve_body: Any):
    """What is there counts as there; sizes that the job does not say are asked for."""
    one, two = serve_body(body_of(1000)), serve_body(body_of(2000))
    files = [Wanted("1", (one.url,), 1000, one.wanted().sha256), Wanted("2", (two.url,))]
    with pytest.raises(DiskFull, match=r"expected 3\.1 kB"):
        get(files, Cache(tmp_path), free=lambda folder: 3000)
    assert one.sent == two.sent == 0
    get(files[:1], Cache(tmp_path), free=lambda folder: 1020)
    get(files, Cache(tmp_path), free=lambda folder: 2040)


def test_one_that_is_missing_ends_the_others(tmp_path: Path, serve_body: Any):
    """The error is that file's; what came whole is kept."""
    good, bad = serve_body(body_of(1000)), serve_body(body_of(1000, seed=1), always="refused")
    files = [
        Wanted(str(at), each.urls, each.size, each.sha256)
        for at, each in enumerate((good.wanted(), bad.wanted()))
    ]
    with pytest.raises(InputMissing):
        get(files, Cache(tmp_path))

    assert {each.sha256 for each in Cache(tmp_path).kept()} <= {files[0].sha256}


def test_a_wish_to_stop_among_small_files(tmp_path: Path, serve_body: Any):
    """All of them leave, and what they held can be gone on with."""
    asked = threading.Event()
    server = serve_body(body_of(1000), always="silence")

    def check() -> None:
        asked.set()
        if server.gets():
            raise StopRequested("interrupted")

    with pytest.raises(StopRequested):
        get([server.wanted()], Cache(tmp_path), check=check)
    server.always = ""
    assert get([server.wanted()], Cache(tmp_path))["file"].read_bytes() == server.body


def test_a_disk_that_fills_midway_leaves_other_jobs_alone(
    tmp_path: Path, serve_body: Any, monkeypatch: pytest.MonkeyPatch
):
    """A13 row 7: 73; what came is kept, and no file of another set was touched."""
    cache, write, came = Cache(tmp_path), os.pwrite, []
    theirs, mine, again = (serve_body(body_of(*each)) for each in ((1000,), (500_000, 1), (500_000, 1)))
    there = get([theirs.wanted()], cache)["file"]
    folder = cache.write_set("theirs", "title", {"model": there.name})

    def full(descriptor: int, data: Any, offset: int) -> int:
        came.append(len(data))
        if sum(came) > 250_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFull, match="what came is kept") as caught:
        get([mine.wanted()], cache)
    monkeypatch.undo()

    assert caught.value.code == 73
    assert cache.read_set("theirs") == folder
    assert [(each.sha256, cache.verify(each)) for each in cache.kept()] == [(there.name, True)]
    assert get([again.wanted()], cache)["file"].read_bytes() == mine.body
    assert again.sent < 0.6 * len(mine.body)
