"""One try to deliver is bounded in time and size, and tells no URL when it fails."""

from __future__ import annotations

import contextlib
import itertools
import time
from typing import Any

import pytest
from loopback import reply

from app_trainer_sdk.callbacks import post
from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.callbacks.post import ANSWER_BYTES, Postman


def test_an_answer_that_trickles_in_is_given_up(serve: Any):
    """Each byte comes in time, the end never does: what came is the answer, and the next try has a new line."""
    seconds = itertools.count()

    def answer(handler: Any, request: Any) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        for _ in range(ANSWER_BYTES):  # until nobody listens any more
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.01)

    postman = Postman(serve(answer).url, Credentials({}), clock=lambda: float(next(seconds)))
    first, second = postman.post("j.1.1", b"{}"), postman.post("j.1.1", b"{}")

    assert (first.status, second.status) == (200, 200)
    assert 0 < len(first.body) < ANSWER_BYTES


def test_an_answer_whose_frames_trickle_in_is_given_up(serve: Any, monkeypatch: pytest.MonkeyPatch):
    """The size of a chunk, digit after digit: no byte of a body comes, and no read comes back."""
    monkeypatch.setattr(post, "READ_SECONDS", 0.2)

    def answer(handler: Any, request: Any) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        with contextlib.suppress(OSError):
            while not handler.server.released.wait(0.02):
                handler.wfile.write(b"0")

    told = Postman(serve(answer).url, Credentials({})).post("j.1.1", b"{}").error
    assert told in ("TimeoutError", "ReadTimeoutError")  # the other where not even the first digit came in time


def test_a_huge_answer_is_read_in_part(serve: Any):
    """As much as an acknowledgement may need."""
    url = serve(lambda handler, request: reply(handler, 500, bytes(4 << 20))).url

    assert len(Postman(url, Credentials({})).post("j.1.1", b"{}").body) == ANSWER_BYTES


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/x?planted", "http://[half/?planted", "https://host.invalid/planted"]
)
def test_what_fails_on_the_way_is_told_by_its_kind(url: str):
    """Never by its text, in which the URL may stand."""
    answer = Postman(url, Credentials({})).post("j.1.1", b"{}")

    assert (answer.status, answer.retry_after) == (0, None)
    assert "planted" not in str(answer)
    assert str(answer).endswith(("Error", "Exception"))
