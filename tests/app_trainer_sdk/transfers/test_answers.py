"""What an answer must say before its bytes are believed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fetched import BODY, get

from app_trainer_sdk.transfers.answers import (
    GONE,
    check_part,
    check_whole,
    content_length,
    content_range,
    refusal,
    strong_etag,
)
from app_trainer_sdk.transfers.faults import Busy, Changed, Fault, Gone, NoRanges

URL = "https://host/file?sig=secret"


def answer(status: int = 206, **headers: str) -> Any:
    """An answer to the bytes 2-5 of 10, with other headers where they are given; empty ones are left out."""
    said = {"Content_Range": "bytes 2-5/10", "Content_Length": "4", "ETag": '"a"', **headers}
    return SimpleNamespace(
        status=status, headers={name.replace("_", "-"): value for name, value in said.items() if value}
    )


def part(status: int = 206, **headers: str) -> None:
    check_part(answer(status, **headers), URL, 2, 6, 10, '"a"')


@pytest.mark.parametrize(
    "headers", [{}, {"Content_Range": "bytes 2-5/*"}, {"Content_Length": ""}, {"ETag": ""}]
)
def test_exactly_the_part_that_was_asked_for(headers: dict[str, str]):
    """A server need not tell the total, the length or an ETag."""
    part(**headers)


@pytest.mark.parametrize(
    ("status", "headers", "fault"),
    [
        (200, {}, NoRanges), (412, {}, Changed), (416, {}, Changed), (404, {}, Gone), (503, {}, Busy),
        (206, {"Content_Range": ""}, Fault), (206, {"Content_Range": "bytes 0-3/10"}, Fault),
        (206, {"Content_Range": "bytes 2-5/11"}, Changed), (206, {"ETag": '"b"'}, Changed),
        (206, {"Content_Length": "5"}, Fault), (206, {"Content_Encoding": "gzip"}, Fault),
    ],
)  # fmt: skip
def test_anything_else_is_a_fault(status: int, headers: dict[str, str], fault: type[Fault]):
    """Another range, file or encoding: none of its bytes may be written; no message holds a secret."""
    with pytest.raises(Fault) as caught:
        part(status, **headers)

    assert type(caught.value) is fault
    assert "secret" not in str(caught.value)


def test_a_part_that_is_the_whole_file_may_come_as_one():
    """200 to a range over everything, of the right length."""
    whole = answer(200, Content_Range="", Content_Length="10")
    check_part(whole, URL, 0, 10, 10, '"a"')
    check_whole(whole, URL, 10)
    with pytest.raises(Changed, match="expected 11"):
        check_whole(whole, URL, 11)
    with pytest.raises(Fault, match="a part where the whole file"):
        check_whole(answer(200, Content_Length="10"), URL, 10)


def test_what_a_status_means():
    """Gone for good, busy for a while, or a fault to try again."""
    assert all(type(refusal(answer(status), URL)) is Gone for status in GONE)
    busy = refusal(answer(429, Retry_After="7"), URL)
    assert isinstance(busy, Busy)
    assert busy.seconds == 7.0
    assert type(refusal(answer(500), URL)) is Fault


@pytest.mark.parametrize(
    ("headers", "length", "found"),
    [
        ({}, 4, (2, 5, 10)), ({"Content_Range": "bytes 2-5/*"}, 4, (2, 5, None)),
        ({"Content_Range": "bytes=2-5/10"}, 4, None), ({"Content_Length": "-4"}, None, (2, 5, 10)),
        ({"Content_Length": "٤"}, None, (2, 5, 10)), ({"Transfer_Encoding": "chunked"}, None, (2, 5, 10)),
        ({"Content_Range": f"bytes {'9' * 30}-5/10"}, 4, None),
    ],
)  # fmt: skip
def test_numbers_of_a_server_are_read_or_not_there(headers: dict[str, str], length: Any, found: Any):
    """Nothing that it may say raises anything else."""
    assert content_length(answer(**headers)) == length
    assert content_range(answer(**headers)) == found


@pytest.mark.parametrize(
    ("said", "strong"), [('"a"', '"a"'), ('W/"a"', None), ('""', None), ("a", None), ("", None)]
)
def test_only_a_strong_etag_names_exactly_these_bytes(said: str, strong: str | None):
    """RFC 9110 section 8.8.1."""
    assert strong_etag(answer(ETag=said)) == strong


@pytest.mark.parametrize("said", [{"head": False}, {"ranges": False}, {"ranges": False, "lengths": False},
                                  {"head": False, "ranges": False, "lengths": False, "etag": ""},
                                  {"etag": ""}, {"lengths": False}])  # fmt: skip
@pytest.mark.parametrize("known", [True, False])
def test_servers_that_can_do_little(tmp_path: Path, serve_body: Any, said: dict[str, Any], known: bool):
    """Without HEAD (a URL signed for GET), ranges, lengths or ETags, with and without a digest in the job."""
    server = serve_body(BODY, **said)

    assert get(server.wanted(known=known), tmp_path) == BODY


@pytest.mark.parametrize("known", [True, False])
def test_an_empty_file(tmp_path: Path, serve_body: Any, known: bool):
    """No range is asked for, since an empty range means the whole file."""
    assert get(serve_body(b"").wanted(known=known), tmp_path) == b""
