"""The listener's store: its URLs are good for what they say and no longer, and nothing in it is half there."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import reserved_port

from app_trainer_sdk.listener import Store

DATA = b"weights" * 100
DIGEST = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def clock() -> list[float]:
    """Unix time."""
    return [1_000_000.0]


@pytest.fixture
def store(tmp_path: Path, clock: list[float]) -> Iterator[Store]:
    """A store on a free port."""
    with Store(tmp_path, now=lambda: clock[0]) as server:
        yield server


def ask(method: str, url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, data=body, method=method, headers=named)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def put(store: Store, body: bytes = DATA, **changed: Any) -> tuple[int, bytes]:
    target = store.put_target("parts/u/1", **{"seconds": 10.0, "size": len(DATA), "sha256": DIGEST, **changed})
    return ask("PUT", target.url, body, **target.headers)


def test_what_was_put_is_composed_and_given(store: Store):
    """Whole, and by ranges."""
    assert put(store)[0] == 200
    assert store.stored_parts("u") == {1: (len(DATA), DIGEST)}
    store.compose("u", "j/artifact/a")
    url = store.get_url("j/artifact/a", seconds=10.0)

    assert ask("GET", url) == (200, DATA)
    assert ask("GET", url, Range="bytes=7-13") == (206, DATA[7:14])
    assert store.stored_parts("u") == {}


def test_a_url_expires(store: Store, clock: list[float]):
    """For PUT and GET; a second before it is good."""
    target = store.put_target("parts/u/1", seconds=10.0, size=len(DATA), sha256=DIGEST)
    clock[0] += 9.0
    early = ask("PUT", target.url, DATA, **target.headers)
    clock[0] += 1.0
    status, said = ask("PUT", target.url, DATA, **target.headers)

    assert (early[0], status) == (200, 403)
    assert b"ExpiredRequest" in said
    assert store.requests[-1] == ("PUT", "parts/u/1", 403, 0)


def test_a_url_is_good_for_one_thing(store: Store):
    """Not for another place, length, digest or method."""
    target = store.put_target("parts/u/1", seconds=10.0, size=len(DATA), sha256=DIGEST)

    assert ask("PUT", target.url.replace("u/1", "u/2"), DATA, **target.headers)[0] == 403
    assert ask("PUT", target.url, DATA[1:], **target.headers)[0] == 403
    assert ask("PUT", target.url, DATA)[0] == 403
    assert ask("GET", target.url)[0] == 403
    assert ask("PUT", target.url, DATA[::-1], **target.headers)[0] == 400
    assert store.stored_parts("u") == {}


def test_nothing_lies_outside_and_nothing_is_taken_beyond_the_quota(store: Store):
    """Names are checked here too."""
    store.quota = 10

    assert put(store)[0] == 507
    with pytest.raises(ValueError, match="leads outside"):
        store.place("../../etc/passwd")
    assert ask("GET", store.get_url("none", seconds=1.0))[0] == 404


def test_urls_stay_good_over_a_restart(tmp_path: Path):
    """The signing key is kept."""
    with reserved_port() as port:
        with Store(tmp_path, ("127.0.0.1", port)) as store:
            target = store.put_target("parts/u/1", seconds=100.0, size=len(DATA), sha256=DIGEST)
        with Store(tmp_path, ("127.0.0.1", port)):
            assert ask("PUT", target.url, DATA, **target.headers)[0] == 200
