"""One request: what it says, which bytes it writes where, and when it is given up."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from claimed import owned
from fetched import BODY, PART, SIZE, get

from app_trainer_sdk.transfers.addresses import Guard
from app_trainer_sdk.transfers.faults import Abandoned, Changed, Fault, Gone
from app_trainer_sdk.transfers.mirrors import Mirror
from app_trainer_sdk.transfers.partial import State
from app_trainer_sdk.transfers.requests import Request, Span, ask_mirror
from app_trainer_sdk.transfers.wanted import Patience, Wanted
from app_trainer_sdk.transfers.web import Web

WEB = Web(Guard())


def test_what_every_request_says(tmp_path: Path, serve_body: Any):
    """Contract A8: a range that is never empty, the ETag it must have, no encoding; each byte once."""
    server = serve_body(BODY)
    get(server.wanted(), tmp_path)
    gets = server.gets()
    ranges = sorted(tuple(map(int, each["Range"].removeprefix("bytes=").split("-"))) for each in gets)

    assert [(start, min(start + PART, SIZE) - 1) for start in range(0, SIZE, PART)] == ranges
    assert {server.etag} == {each["If-Match"] for each in gets}
    assert {"identity"} == {each["Accept-Encoding"] for _, _, each in server.requests}
    assert server.requests[0][0] == "HEAD"
    assert server.sent == SIZE


def test_credentials_do_not_follow_to_another_host(tmp_path: Path, serve_body: Any):
    """A cross-host redirect keeps the range and drops the token."""
    server, store = serve_body(BODY, always="redirect"), serve_body(BODY)
    server.elsewhere = store.url.replace("127.0.0.1", "localhost")
    wanted = server.wanted(credentials={"Authorization": "Bearer VerySecret"})

    assert get(wanted, tmp_path) == BODY
    assert all(each["Authorization"] == "Bearer VerySecret" for each in server.gets())
    assert all("Authorization" not in each and "Range" in each for each in store.gets())


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    """Eight bytes on this disk."""
    (tmp_path / "there").write_bytes(b"01234567")
    return Mirror((tmp_path / "there").as_uri())


def perform(mirror: Mirror, folder: Path, *, abandon: bool = False, **patience: Any) -> tuple[bytes, list[int]]:
    """Fetch the second half of the file; what is there then, and how far the parts are."""
    wanted, state = Wanted("file", (mirror.url,)), State(8, 4, [0, 1])
    ticks = itertools.count()
    mine = owned(folder / "partial")
    mine.begin(state, keep=False)
    request = Request(1, mirror, mine.open_writer(state, 1), 0.0)
    if abandon:
        request.abandon()
    request.perform(
        Span(4, 1, 4, 8, whole=False), web=WEB, wanted=wanted, patience=Patience(piece_bytes=2, **patience),
        now=lambda: float(next(ticks)), add=lambda size, url: None,
    )  # fmt: skip
    return mine.data.read_bytes(), state.done


def test_what_is_missing_of_a_part_is_written_where_it_belongs(mirror: Mirror, tmp_path: Path):
    """What is there of it already is not read again."""
    ask_mirror(mirror, WEB, Wanted("file", (mirror.url,)))

    assert perform(mirror, tmp_path) == (b"\0\0\0\0\x00567", [0, 4])


def test_a_mirror_is_asked_once(mirror: Mirror, tmp_path: Path):
    """What it said of the file holds until it is found to be another one."""
    wanted = Wanted("file", (mirror.url,))
    facts = ask_mirror(mirror, WEB, wanted)
    (tmp_path / "there").unlink()

    assert (facts.size, facts.ranged) == (8, True)
    assert ask_mirror(mirror, WEB, wanted) is facts
    with pytest.raises(Gone, match="No such file"):
        ask_mirror(Mirror(mirror.url), WEB, wanted)


def test_a_file_that_changed_gives_no_byte(mirror: Mirror, tmp_path: Path):
    """As an ETag tells of a server."""
    ask_mirror(mirror, WEB, Wanted("file", (mirror.url,)))
    (tmp_path / "there").write_bytes(b"012345678")
    with pytest.raises(Changed):
        perform(mirror, tmp_path)


def test_too_few_bytes_too_slow_and_given_up(mirror: Mirror, tmp_path: Path):
    """Each is a fault of the request; what was given up is charged to nobody."""
    (tmp_path / "there").write_bytes(b"012345")
    with pytest.raises(Fault, match="1 bytes instead of 3"):
        perform(mirror, tmp_path / "a")
    with pytest.raises(Fault, match="less than 1,000 bytes a second"):
        perform(mirror, tmp_path / "b", slow_seconds=1.0, least_rate=1000.0)
    with pytest.raises(Abandoned):
        perform(mirror, tmp_path / "c", abandon=True)
