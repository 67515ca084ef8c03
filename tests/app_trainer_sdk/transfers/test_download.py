"""Whatever a server does, a file under its final name is the right one, or a clear error ends the tries."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from fetched import BODY, PART, SIZE, finals, get, place
from loopback import free
from lying_server import LyingServer, body_of, tools

from app_trainer_sdk.errors import (
    BadJob,
    DependencyUnavailable,
    DiskFull,
    InputMissing,
    StopRequested,
)
from app_trainer_sdk.owner import boot_id
from app_trainer_sdk.transfers.download import download
from app_trainer_sdk.transfers.progress import Meter, NoListener
from app_trainer_sdk.transfers.sets import fetch_files
from app_trainer_sdk.transfers.tools import Tools
from app_trainer_sdk.transfers.wanted import Wanted


def test_a_file_mirror(tmp_path: Path, serve_body: Any):
    """``file:`` URLs are mirrors like others: verified, copied, and left alone."""
    there = tmp_path / "a b"
    there.write_bytes(BODY)
    wanted = Wanted("file", (there.as_uri(),), SIZE, hashlib.sha256(BODY).hexdigest())
    missing = Wanted("file", ((tmp_path / "no").as_uri(),), SIZE, hashlib.sha256(BODY).hexdigest())

    assert get(wanted, tmp_path) == BODY == there.read_bytes()
    (tmp_path / "final" / str(wanted.sha256)).unlink()
    with pytest.raises(InputMissing):
        get(missing, tmp_path)


def test_a_host_that_must_not_be_asked(tmp_path: Path, serve_body: Any):
    """A redirect into the platform's network is refused as the URL itself would be (64)."""
    server = serve_body(BODY, always="redirect")
    server.elsewhere = "http://127.0.0.2:1/latest/meta-data"
    with pytest.raises(BadJob, match=r"127\.0\.0\.2 is not an address of the public internet"):
        get(server.wanted(), tmp_path)


def test_patience_is_shown_when_asked_for(tmp_path: Path, serve_body: Any):
    """429 with Retry-After: nobody is asked before, and waiting is left to the clock."""

    class Watch:
        def __init__(self) -> None:
            self.skipped, self.waits = 0.0, []

        def now(self) -> float:
            return self.skipped

        def wait(self, event: threading.Event, seconds: float) -> bool:
            self.waits.append(seconds)
            if seconds < 1.0:
                return event.wait(seconds)
            self.skipped += seconds
            return event.is_set()

    clock, server = Watch(), serve_body(BODY, "patience")
    using = tools(connections=1)

    assert get(server.wanted(), tmp_path, using=Tools(using.web, using.patience, clock, using.chance)) == BODY
    assert max(clock.waits) == 7.0


def test_a_url_that_expires_in_mid_file(tmp_path: Path, serve_body: Any):
    """66, what came is kept, and a fresh URL of the same file fetches only the rest."""
    server = serve_body(BODY, "", "", "", "", always="refused")
    with pytest.raises(InputMissing, match="answered 403"):
        get(server.wanted(), tmp_path, using=tools(connections=1))
    before, server.always = server.sent, ""
    fresh = Wanted("file", (f"{server.url}?X-Amz-Signature=new",), SIZE, hashlib.sha256(BODY).hexdigest())

    assert get(fresh, tmp_path) == BODY
    assert before == 4 * PART
    assert server.sent == SIZE


def test_a_wrong_mixture_is_not_mixed_again(tmp_path: Path, serve_body: Any):
    """One of two mirrors is corrupt: wrong bytes are put away, and one mirror alone has the file."""
    corrupt, good = serve_body(BODY, always="wrong_bytes"), serve_body(BODY, "broken")
    wanted = good.wanted(corrupt.url)

    assert get(wanted, tmp_path, using=tools(connections=2)) == BODY


def test_mirrors_that_agree_on_another_file_mean_a_wrong_job(tmp_path: Path, serve_body: Any):
    """64, since a later try would end alike; mirrors that differ are a dependency that failed (69)."""
    one, two, three = serve_body(BODY[:-1]), serve_body(BODY[:-1]), serve_body(BODY[:-2])
    wanted = {"size": SIZE, "sha256": "0" * 64}
    with pytest.raises(BadJob, match="has 499999 bytes; expected 500000 bytes"):
        get(one.wanted(two.url, **wanted), tmp_path)
    with pytest.raises(DependencyUnavailable, match="none of 2 mirrors"):
        get(one.wanted(three.url, **wanted), tmp_path)


def left_behind(
    folder: Path, data: bytes, wanted: Wanted, *, done: list[int], etag: str, boot: str = ""
) -> None:
    """What an earlier process left of a file."""
    partial = folder / "partial" / wanted.key
    partial.mkdir(parents=True)
    (partial / "data").write_bytes(data)
    state = {"size": SIZE, "part_bytes": PART, "done": done, "boot": boot, "etags": {wanted.urls[0]: etag}}
    (partial / "state.json").write_text(json.dumps(state))


LENGTHS = [min(PART, SIZE - start) for start in range(0, SIZE, PART)]


def test_a_complete_partial_needs_no_request_for_bytes(tmp_path: Path, serve_body: Any):
    """CASES K3: nothing is asked for, so nothing can answer 416; the digest decides."""
    server = serve_body(BODY)
    left_behind(tmp_path, BODY, server.wanted(), done=LENGTHS, etag=server.etag)

    assert get(server.wanted(), tmp_path) == BODY
    assert server.gets() == []


@pytest.mark.parametrize("data", [BODY[:-1] + bytes([BODY[-1] ^ 1]), BODY + b"!", BODY[:-1]])
def test_a_wrong_partial_is_begun_anew_once(tmp_path: Path, serve_body: Any, data: bytes):
    """CASES K3: another digest, too long, too short: the file comes once, whole."""
    server = serve_body(BODY)
    left_behind(tmp_path, data, server.wanted(), done=LENGTHS, etag=server.etag)

    assert get(server.wanted(), tmp_path) == BODY
    assert server.sent == SIZE


def test_a_partial_of_another_version_is_begun_anew(tmp_path: Path, serve_body: Any):
    """The ETag is another one than that of the bytes that are there."""
    server = serve_body(BODY)
    left_behind(tmp_path, BODY, server.wanted(), done=[*LENGTHS[:4], 0, 0, 0, 0], etag='"old"')

    assert get(server.wanted(), tmp_path) == BODY
    assert server.sent == SIZE


def test_only_durable_bytes_count_on_a_machine_that_was_started_anew(tmp_path: Path, serve_body: Any):
    """Positions after the last sync are believed while the machine ran on, and not after a power cut."""
    for boot, more in ((boot_id(), 0), ("another", LENGTHS[1])):
        server = serve_body(BODY)
        wanted = server.wanted()
        folder = tmp_path / (boot or "none")
        left_behind(folder, BODY, wanted, done=[LENGTHS[0], 0, *LENGTHS[2:]], etag=server.etag, boot=boot)
        written = b"".join(each.to_bytes(8, "little") for each in LENGTHS)
        (folder / "partial" / wanted.key / "positions").write_bytes(written)

        assert get(wanted, folder) == BODY
        assert more == server.sent


def came(folder: Path) -> int:
    """Bytes that are on the disk of a file in the making, as the next start would believe."""
    return sum(
        int.from_bytes(positions[at : at + 8], "little")
        for positions in (path.read_bytes() for path in (folder / "partial").glob("*/positions"))
        for at in range(0, len(positions), 8)
    )


def test_a_wish_to_stop_keeps_what_came(tmp_path: Path, serve_body: Any):
    """Noticed between two looks although the server is silent; the next start fetches the rest."""

    def hold(sent: int) -> None:
        if sent >= SIZE // 2:
            server.released.wait(120.0)

    server, again = serve_body(BODY, hold=hold), serve_body(BODY)

    def check() -> None:
        if came(tmp_path) >= SIZE // 2 - 2 * 16384:  # of each connection less than a piece is on its way
            raise StopRequested("interrupted")

    with pytest.raises(StopRequested):
        get(server.wanted(), tmp_path, check=check, using=tools(connections=2))

    assert get(again.wanted(), tmp_path) == BODY
    assert again.sent <= SIZE // 2 + 2 * 16384


def test_a_disk_that_fills_keeps_what_came(tmp_path: Path, serve_body: Any, monkeypatch: pytest.MonkeyPatch):
    """73; the partial file is gone on with when there is room again."""
    server, again, write, writes = serve_body(BODY), serve_body(BODY), os.pwrite, []

    def full(descriptor: int, data: Any, offset: int) -> int:
        writes.append(len(data))
        if sum(writes) > SIZE // 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFull, match="what came is kept"):
        get(server.wanted(), tmp_path)
    monkeypatch.undo()
    monkeypatch.setenv("PYTEST_TMP", str(tmp_path))

    assert finals(tmp_path) == []
    assert get(again.wanted(), tmp_path) == BODY
    assert again.sent < 0.6 * SIZE


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import lying_server
from app_trainer_sdk.transfers.download import Destination, download
from app_trainer_sdk.transfers.progress import Meter, NoListener
from app_trainer_sdk.transfers.wanted import Wanted
folder, url, size, sha256 = Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5]
tools = lying_server.tools(part_bytes=0, connections=8)
meter = Meter("file", total=0, told=NoListener(), now=tools.clock.now)
place = Destination(folder / "partial", lambda sha256: folder / "final" / sha256)
print("ready", flush=True)
sys.stdin.readline()
wanted = Wanted("file", (url,), size, sha256)
print(download(wanted, place, tools=tools, check=lambda: None, meter=meter), flush=True)
"""


def child(server: LyingServer, folder: Path) -> subprocess.Popen[str]:
    """A process that downloads once it is told to."""
    words = [str(Path(__file__).parent), str(folder), server.url, str(len(server.body))]
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, *words, hashlib.sha256(server.body).hexdigest()],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def begin(process: subprocess.Popen[str]) -> None:
    """Let a child go."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_a_kill_at_half_costs_half(tmp_path: Path, serve_body: Any):
    """A13 row 5: kill -9 at 50 %; the next process fetches at most 52 % again, parts begun included."""
    body = body_of(64 << 20)

    def hold(sent: int) -> None:
        if sent >= len(body) // 2:
            server.released.wait(120.0)

    server, again = serve_body(body, hold=hold), serve_body(body)
    process = child(server, tmp_path)
    begin(process)
    limit = time.monotonic() + 60.0
    while came(tmp_path) < 0.48 * len(body):  # what was sent is read
        assert time.monotonic() < limit
        time.sleep(0.01)
    process.kill()
    process.communicate()
    using = tools(part_bytes=0, connections=8)

    assert get(again.wanted(), tmp_path, using=using) == body
    assert again.sent < 0.52 * len(body)
    assert list((tmp_path / "partial").iterdir()) == []


def test_two_processes_race_and_both_end_right(tmp_path: Path, serve_body: Any):
    """A13 row 5: no locks; one downloads, the other waits for it, and the bytes come once."""
    server = serve_body(body_of(8 << 20))
    racing = [child(server, tmp_path) for _ in range(2)]
    for each in racing:
        begin(each)
    said = [each.communicate(timeout=180)[0].strip() for each in racing]

    assert [str(tmp_path / "final" / hashlib.sha256(server.body).hexdigest())] * 2 == said
    assert [server.body] == finals(tmp_path)
    assert [each.returncode for each in racing] == [0, 0]


def test_waiting_for_a_process_elsewhere_is_told_and_can_be_stopped(tmp_path: Path, serve_body: Any):
    """One of another container or machine beats: people see why nothing comes, and a stop is noticed."""
    server, told = serve_body(BODY), []
    wanted = server.wanted()
    beat = tmp_path / "partial" / f"{wanted.key}.ffffffffffff-1-1-1-00000000" / "heartbeat"
    beat.parent.mkdir(parents=True)
    beat.touch()

    class Lines:
        def transferring(self, text: str, done: int, total: int) -> None:
            told.append(text)

        def transferred(self, row: dict[str, Any]) -> None: ...

    def check() -> None:
        if told:
            raise StopRequested("interrupted")

    meter = Meter("weights base", total=SIZE, told=Lines(), now=time.monotonic)
    with pytest.raises(StopRequested):
        download(wanted, place(tmp_path), tools=tools(), check=check, meter=meter)

    assert told == ["weights base: 0 B of 500.0 kB  waiting for the process that fetches file"]
    assert server.requests == []


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(tmp_path: Path, serve_body: Any):
    """A13 row 7: 73 with what is needed, and not one byte fetched."""
    server = serve_body(BODY)
    with pytest.raises(DiskFull, match=r"expected 1\.5 MB \(500\.0 kB to come, 1\.0 MB in reserve, 2 %\)"):
        fetch_files(
            [server.wanted()], place(tmp_path), label="x", tools=tools(), check=free, told=NoListener(),
            reserve=1_000_000, free=lambda folder: SIZE,
        )  # fmt: skip

    assert server.gets() == []
    assert server.sent == 0


def test_secrets_are_in_no_message(tmp_path: Path, serve_body: Any, caplog: pytest.LogCaptureFixture):
    """Presigned URLs are secrets: not in an error, a repr, or a library's debug log."""
    caplog.set_level("DEBUG")
    server = serve_body(BODY, always="refused")
    secret = "VerySecret"
    wanted = Wanted("file", (server.url.replace("//", f"//u:{secret}@") + f"?sig={secret}",), SIZE, "0" * 64)
    with pytest.raises(InputMissing) as caught:
        get(wanted, tmp_path)

    assert secret not in str(caught.value) + repr(wanted) + caplog.text
    assert all(each["authorization"].startswith("Basic ") for each in server.gets())
