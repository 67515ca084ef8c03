"""One file from servers that lie: parts go again until it is right, or until nobody is left to ask."""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from fetched import BODY, SIZE, finals, get, place
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import free
from lying_server import LIES, LyingServer, body_of, impatient, tools

from app_trainer_sdk.errors import TrainerError
from app_trainer_sdk.transfers.download import download
from app_trainer_sdk.transfers.progress import Meter

#: One of these in an otherwise honest file cannot be mended: there is nobody else to ask.
FATAL_ALONE = {"refused": 66, "redirect_loop": 69, "new_file": 64, "wrong_bytes": 64}
EXAMPLES = itertools.count()
SLOW = {"silence", "silence_in_body", "trickle", "endless_frame", "patience"}


@pytest.mark.parametrize(
    "fault", ["", *(each for each in LIES if each not in FATAL_ALONE and each != "patience")]
)
def test_one_lie_is_mended(tmp_path: Path, serve_body: Any, fault: str):
    """CASES K1, K2; A13 row 6: a part goes again to the only mirror there is, and the file is right."""
    server = serve_body(BODY, "", fault)
    server.elsewhere = serve_body(BODY).url

    assert get(server.wanted(), tmp_path, using=impatient(tries=50) if fault in SLOW else tools()) == BODY
    assert finals(tmp_path) == [BODY]
    assert list((tmp_path / "partial").iterdir()) == []
    assert len(server.requests) < 50


@pytest.mark.parametrize(("fault", "code"), FATAL_ALONE.items())
def test_one_lie_that_cannot_be_mended(tmp_path: Path, serve_body: Any, fault: str, code: int):
    """Refused, led in circles, another file, other bytes: told at once as what it is."""
    server = serve_body(BODY, "", fault)
    with pytest.raises(TrainerError) as caught:
        get(server.wanted(), tmp_path)

    assert code == caught.value.code
    assert server.url in str(caught.value)
    assert finals(tmp_path) == []


@pytest.mark.parametrize("fault", [each for each in LIES if each != "patience"])
def test_a_server_that_always_lies_comes_to_an_end(tmp_path: Path, serve_body: Any, fault: str):
    """A right file or an error after a bounded number of tries, whatever it does."""
    server = serve_body(BODY, always=fault)
    server.elsewhere = serve_body(BODY).url
    using = impatient(tries=3, connections=2, slow_seconds=0.1)
    try:
        found = get(server.wanted(), tmp_path, using=using)
    except TrainerError:
        assert finals(tmp_path) == []
    else:
        assert found == BODY
        assert fault in ("redirect", "whole_200", "short_body", "truncate", "new_etag")
    assert len(server.requests) < 150


@pytest.mark.parametrize("fault", [each for each in LIES if each not in ("patience", "redirect")])
def test_another_mirror_helps(tmp_path: Path, serve_body: Any, fault: str):
    """The first mirror always lies, the second never: the file is right."""
    server, honest = serve_body(BODY, always=fault), serve_body(BODY)
    using = impatient(connections=2, tries=50) if fault in SLOW else tools(tries=2, connections=2)
    found = get(server.wanted(honest.url), tmp_path, using=using)

    assert found == BODY
    assert finals(tmp_path) == [BODY]


@settings(max_examples=30)
@given(
    st.lists(st.sampled_from(["", *LIES]), max_size=12), st.lists(st.sampled_from(["", *LIES]), max_size=6),
    st.booleans(), st.booleans(),
)  # fmt: skip
def test_any_sequence_of_lies(first: list[str], second: list[str], head: bool, ranges: bool):
    """A13 row 6: never a wrong byte under the final name; an error, or exactly the file."""
    slow = [each for each in first if each in SLOW][1:]  # one silence an example is enough time spent
    script = [each for each in first if each not in SLOW or each not in slow]
    server = LyingServer(BODY, [each for each in script if each != "patience"], head=head)
    other = LyingServer(BODY, [each for each in second if each not in SLOW], ranges=ranges)
    server.elsewhere = other.url
    folder = Path(os.environ["PYTEST_TMP"]) / str(next(EXAMPLES))  # chance begins anew with each example
    try:
        with contextlib.suppress(TrainerError):
            assert get(server.wanted(other.url), folder, using=impatient()) == BODY
        assert finals(folder) in ([], [BODY])
        assert len(server.requests) + len(other.requests) < 250
    finally:
        server.end()
        other.end()


@pytest.fixture(autouse=True)
def folder_for_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis calls one test many times; each example needs a folder of its own."""
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path))


def test_one_stream_that_breaks_begins_again(tmp_path: Path, serve_body: Any):
    """CASES K1: nothing of the first try is appended to."""
    server = serve_body(BODY, "drop", "broken", ranges=False)

    assert get(server.wanted(), tmp_path) == BODY


def test_another_etag_begins_the_file_anew(tmp_path: Path, serve_body: Any):
    """Bytes of two versions are never mixed, also where no digest would tell."""
    server = serve_body(BODY, "", "", "new_file")
    found = get(server.wanted(known=False), tmp_path, using=tools(connections=1))

    assert found == server.body
    assert found != BODY


def test_without_a_digest_mirrors_are_not_mixed(tmp_path: Path, serve_body: Any):
    """Two mirrors with different files of one length: the result is one of them."""
    one, two = serve_body(BODY, "", "", always="broken"), serve_body(body_of(SIZE, seed=1))
    found = get(one.wanted(two.url, known=False), tmp_path, using=tools(connections=1, tries=2))

    assert found == two.body


def test_a_part_that_lags_is_asked_for_again(tmp_path: Path, serve_body: Any):
    """A slow connection among fast ones costs a second request, not the wait."""
    slow, fast = serve_body(BODY, "", "", "", "", "trickle"), serve_body(BODY)
    rows: list[dict[str, Any]] = []

    class Rows:
        def transferring(self, text: str, done: int, total: int) -> None: ...
        def transferred(self, row: dict[str, Any]) -> None:
            rows.append(row)

    using = tools(connections=2, lagging_seconds=0.05)
    meter = Meter("x", total=SIZE, told=Rows(), now=using.clock.now)
    download(slow.wanted(fast.url), place(tmp_path), tools=using, check=free, meter=meter)
    meter.finish(1)

    assert rows[0]["asked_again"] >= 1
    assert finals(tmp_path) == [BODY]
