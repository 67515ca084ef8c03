"""What listener and store share: connections that end with the server, bodies as files, names that stay."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk.listener.http import Handler, Server, inside

KEPT: list[tuple[Path, int, bytes]] = []


class Keeping(Handler):
    """Keeps what it gets where the path says."""

    def answer(self) -> None:
        if self.command == "GET":
            return self.say(404, b"none")
        KEPT.append(self.keep_body(Path(self.path)))
        return self.say_json({"bytes": KEPT[-1][1]}, 201)

    do_GET = do_PUT = answer  # noqa: N815 - the names http.server looks for


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Keeping) as running:
        yield running


@pytest.fixture
def connection(server: Server) -> Iterator[http.client.HTTPConnection]:
    with contextlib.closing(http.client.HTTPConnection(*server.server_address[:2], timeout=60)) as opened:
        yield opened


def ask(connection: http.client.HTTPConnection, method: str, path: Any, body: bytes = b"") -> tuple[int, bytes]:
    connection.request(method, str(path), body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_a_body_becomes_a_file(connection: http.client.HTTPConnection, tmp_path: Path):
    """With its size and digest, in a folder that is made; one connection serves many."""
    for body in (b"first" * 100_000, b""):
        told = ask(connection, "PUT", tmp_path / "new", body)
        path, size, digest = KEPT.pop()

        assert told == (201, b'{"bytes": %d}' % len(body))
        assert (path.parent, path.read_bytes()) == (tmp_path / "new", body)
        assert (size, digest) == (len(body), hashlib.sha256(body).digest())


def test_of_a_connection_that_breaks_nothing_stays(tmp_path: Path):
    """A reset is an error and not an end: no caller hears of the file."""

    class Reset:
        def read(self, size: int) -> bytes:
            raise ConnectionResetError

    handler: Any = object.__new__(Handler)
    handler.headers, handler.rfile = {"Content-Length": "9"}, Reset()
    with pytest.raises(ConnectionResetError):
        handler.keep_body(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_refusal_ends_the_connection(connection: http.client.HTTPConnection):
    """Of a body that was perhaps not read nothing may be taken for a request."""
    assert ask(connection, "GET", "/") == (404, b"none")
    assert connection.sock is None


def test_a_client_that_keeps_its_connection_is_left(
    server: Server, connection: http.client.HTTPConnection, tmp_path: Path
):
    """Once the server has ended nobody answers there any more."""
    ask(connection, "PUT", tmp_path)
    server.__exit__()
    connection.auto_open = 0

    with pytest.raises((http.client.HTTPException, ConnectionError)):
        ask(connection, "PUT", tmp_path)


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../..", "", "."])
def test_a_name_that_leads_outside_is_refused(tmp_path: Path, name: str):
    """And one below stays: its folders need not be there."""
    assert inside(tmp_path, "a/b") == tmp_path / "a" / "b"
    with pytest.raises(ValueError, match="leads outside"):
        inside(tmp_path, name)
