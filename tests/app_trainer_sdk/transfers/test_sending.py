"""One round of an upload: parts to where they were granted, and what a store's answers mean."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lying_server import body_of
from receivers import KIB, Flaky, Receiver, send, upload_tools, web, written

from app_trainer_sdk.errors import UploadFailed
from app_trainer_sdk.listener.desk import DROPPED, SILENT
from app_trainer_sdk.listener.desk import Fault as Told
from app_trainer_sdk.transfers.pauses import RealClock

SIZE = 300 * KIB  # five parts
NAME = "weights.safetensors"


def test_a_url_that_expires_on_the_way_is_replaced_and_no_part_goes_twice(tmp_path: Path):
    """A13 row 8: a time of 2 s and a slow way. Parts wait longer than that; each is taken exactly once."""
    clock = RealClock()
    with Receiver(tmp_path / "desk", seconds=2.0) as receiver:
        tools = upload_tools(clock=clock, connections=1)
        tools.throttle.rate = 100 * KIB  # three seconds in all
        send(written(tmp_path, SIZE), receiver.client(), tools)

        assert sorted(number for number, _ in receiver.taken()) == ["1", "2", "3", "4", "5"]
        assert receiver.stored("artifact", "adapter", NAME) == body_of(SIZE)


def test_a_url_that_the_store_finds_expired_is_asked_for_again(tmp_path: Path, receiver: Receiver):
    """403 to parts that looked fresh here: only they go again, under another URL."""
    ahead = [0.0]
    receiver.store.now = lambda: time.time() + ahead[0]
    client = receiver.client()

    class Late:
        """The store's clock jumps by more than the time of a URL after the first grant."""

        def __getattr__(self, name: str) -> Any:
            def ask(*words: Any) -> Any:
                answer = getattr(client, name)(*words)
                if name == "parts" and not ahead[0]:
                    ahead[0] = 10_000.0
                return answer

            return ask

    send(written(tmp_path, SIZE), Late(), upload_tools())

    refused = [row for row in receiver.store.requests if row[2] == 403]
    assert refused
    assert sorted(number for number, _ in receiver.taken()) == ["1", "2", "3", "4", "5"]


class Waiting:
    """Connections that wait shortly while the store is to be silent, and for long where it only may be slow: of
    what it takes then nothing would be known here.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def open(self, *words: Any, **more: Any) -> Any:
        silent = any(each.status == SILENT for each in self._receiver.store.faults)
        return web(silence=0.3 if silent else 60.0).open(*words, **more)


@pytest.mark.parametrize(
    "faults",
    [
        [Told(500), Told(503, headers={"Retry-After": "1"})],
        [Told(DROPPED), Told(DROPPED)],
        [Told(403), Told(403)],
        [Told(SILENT)],
        [Told(429), Told(DROPPED), Told(500), Told(403), Told(408)],
    ],
)
def test_a_store_that_has_its_troubles_gets_everything_in_the_end(
    tmp_path: Path, receiver: Receiver, faults: list[Told]
):
    """Errors, resets, silence and refusals: parts that were taken stay taken."""
    receiver.store.faults.extend(faults)
    send(
        written(tmp_path, SIZE), receiver.client(), replace(upload_tools(connections=1), web=Waiting(receiver))
    )

    assert receiver.stored("artifact", "adapter", NAME) == body_of(SIZE)
    assert sum(size for _, size in receiver.taken()) == SIZE


def test_the_store_refuses_other_bytes_than_were_signed(tmp_path: Path, receiver: Receiver):
    """A wrong checksum is refused by the store itself, before anybody is asked to verify."""
    path = written(tmp_path, SIZE)
    client = receiver.client()

    class Changing(Flaky):
        def parts(self, *words: Any) -> Any:
            path.write_bytes(b"x" * SIZE)
            return client.parts(*words)

    with pytest.raises(UploadFailed, match=r"refused 4 times: .*other bytes than announced"):
        send(path, Changing(client), upload_tools())

    assert receiver.taken() == []
    assert receiver.outputs.verified("j") == []


def test_a_file_that_goes_or_changes_is_told(tmp_path: Path, receiver: Receiver):
    """Not a file: an error that names it."""
    with pytest.raises(UploadFailed, match="cannot be read"):
        send(tmp_path / "none", receiver.client(), upload_tools())
