"""A head that comes byte by byte ends, however small the pauses between its bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app_trainer_sdk.callbacks import post
from app_trainer_sdk.callbacks.credentials import Credentials
from app_trainer_sdk.callbacks.post import Postman
from app_trainer_sdk.transfers.addresses import Guard
from app_trainer_sdk.transfers.faults import Fault
from app_trainer_sdk.transfers.lines import _closed_after
from app_trainer_sdk.transfers.web import Web

LOCAL = Guard(("127.0.0.1",))
PATIENCE = 0.4
PAUSE = 0.05


class Trickling:
    """A server that sends the beginning, and then the same again and again until its caller goes away."""

    def __init__(self, beginning: bytes, bytes_: bytes = b"a") -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.port = self._socket.getsockname()[1]
        self.left = threading.Event()
        threading.Thread(target=self._serve, args=(beginning, bytes_), daemon=True).start()

    def _serve(self, beginning: bytes, bytes_: bytes) -> None:
        with self._socket.accept()[0] as line:
            try:
                line.recv(65536)
                line.sendall(beginning)
                while not self._over.wait(PAUSE):
                    line.sendall(bytes_)
            except OSError:
                self.left.set()

    def close(self) -> None:
        """End it."""
        self._over.set()
        self._socket.close()


@pytest.fixture
def answers_with() -> Iterator[Callable[[bytes], str]]:
    """Servers that answer each request with these bytes, ``%d`` being its number on the connection, and go away
    after those that do not count.
    """
    sockets: list[socket.socket] = []

    def serve(there: socket.socket, bytes_: bytes) -> None:
        with contextlib.suppress(OSError):
            while True:
                with there.accept()[0] as line:
                    number = 0
                    while line.recv(65536):
                        number += 1
                        line.sendall(bytes_.replace(b"%d", b"%d" % number))
                        if b"%d" not in bytes_:
                            break

    def begin(bytes_: bytes) -> str:
        sockets.append(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=serve, args=(sockets[-1], bytes_), daemon=True).start()
        return f"http://127.0.0.1:{sockets[-1].getsockname()[1]}/"

    yield begin
    for each in sockets:
        each.close()


@pytest.fixture(
    params=[
        (b"HTTP/1.1 200 OK\r\nX-Long: ", b"a"),
        (b"HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
        (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["a header", "headers", "continues"],
)
def trickling(request: pytest.FixtureRequest) -> Iterator[Trickling]:
    """A head without an end."""
    server = Trickling(*request.param)
    yield server
    server.close()


def test_a_head_without_an_end_is_silence(trickling: Trickling):
    """Each byte comes in time and the last never: a fault as silence is, and the connection is closed."""
    web, before = Web(Guard(("127.0.0.1",)), silence_seconds=PATIENCE), {*threading.enumerate()}
    with pytest.raises(Fault, match="silence"), web.open("GET", f"http://127.0.0.1:{trickling.port}/"):
        pass
    watches = [each for each in {*threading.enumerate()} - before if isinstance(each, threading.Timer)]
    for each in watches:
        each.join(60)

    assert trickling.left.wait(60)
    assert not [each for each in watches if each.is_alive()]


def test_an_event_that_is_never_answered_whole_is_tried_again(
    trickling: Trickling, monkeypatch: pytest.MonkeyPatch
):
    """The sender is free again after the time that it has for an answer."""
    monkeypatch.setattr(post, "READ_SECONDS", PATIENCE)
    answer = Postman(f"http://127.0.0.1:{trickling.port}/x", Credentials({})).post("j.1.1", b"{}")

    assert (answer.status, answer.error) == (0, "ReadTimeoutError")


def test_a_greeting_of_tls_without_an_end_is_silence():
    """Not only what is said inside TLS ends."""
    server = Trickling(b"\x16\x03\x03\x40\x00", b"\x02")  # one record of 16 KiB, byte by byte
    web = Web(Guard(("127.0.0.1",)), silence_seconds=PATIENCE)
    with pytest.raises(Fault), web.open("GET", f"https://127.0.0.1:{server.port}/"):
        pass

    assert server.left.wait(60)
    server.close()


def test_a_head_that_was_cut_off_is_no_head(answers_with: Callable[[bytes], str]):
    """Of a file whose size nobody knows nothing would be taken for all of it."""
    url = answers_with(b"HTTP/1.1 200 OK\r\nDate: today\r\nConte")
    with pytest.raises(Fault), Web(LOCAL).open("GET", url):
        pass


def test_what_is_said_on_the_way_to_an_answer_is_passed_over(answers_with: Callable[[bytes], str]):
    """Hints and the like, however many; the connection goes on with the next answer in its place."""
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
    web, url = Web(LOCAL), answers_with(hints + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n%d\n")
    for number in (1, 2):
        with web.open("GET", url) as answer:
            assert (answer.status, answer.read()) == (200, b"%d\n" % number)


def test_a_protocol_that_nobody_asked_for_is_a_fault(answers_with: Callable[[bytes], str]):
    """101 is the last that is said in HTTP."""
    url = answers_with(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
    with pytest.raises(Fault, match="101"), Web(LOCAL).open("GET", url):
        pass


def descriptors_of(line: socket.socket) -> int:
    """How many descriptors of this process lead to one end; other threads open and close others meanwhile."""
    count, end = 0, Path(f"/proc/self/fd/{line.fileno()}").readlink()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += each.readlink() == end
    return count


def test_a_failure_in_time_stays_what_it_is():
    """Only what was ended here is a time-out; both descriptors' ends are as before."""
    ours, theirs = socket.socketpair()
    before = descriptors_of(ours)
    with pytest.raises(KeyError), _closed_after(ours, 60.0):
        raise KeyError("other")

    assert descriptors_of(ours) == before == 1
    theirs.sendall(b"x")
    assert ours.recv(1) == b"x"
    ours.close()
    theirs.close()
