"""Whatever a server does, a file under its final name is the right one, or a clear error ends the tries."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import free
from lying_server import LIES, LyingServer, body_of, impatient, tools

from app_trainer_sdk.errors import (
    BadJob,
    DependencyUnavailable,
    DiskFull,
    InputMissing,
    StopRequested,
    TrainerError,
)
from app_trainer_sdk.owner import boot_id
from app_trainer_sdk.transfers.download import Destination, download
from app_trainer_sdk.transfers.progress import Meter, NoListener
from app_trainer_sdk.transfers.sets import fetch_files
from app_trainer_sdk.transfers.tools import Tools
from app_trainer_sdk.transfers.wanted import Wanted

SIZE = 500_000
BODY = body_of(SIZE)
PART = 64 * 1024
#: One of these in an otherwise honest file cannot be mended: there is nobody else to ask.
FATAL_ALONE = {"refused": 66, "redirect_loop": 69, "new_file": 64, "wrong_bytes": 64}
SLOW = {"silence", "silence_in_body", "trickle", "patience"}


@pytest.fixture
def lie() -> Iterator[Callable[..., LyingServer]]:
    """Start lying servers; they are gone after the test."""
    servers: list[LyingServer] = []

    def start(body: bytes = BODY, *script: str, **said: Any) -> LyingServer:
        servers.append(LyingServer(body, script, **said))
        return servers[-1]

    yield start
    for server in servers:
        server.end()


def place(folder: Path) -> Destination:
    return Destination(folder / "partial", lambda sha256: folder / "final" / sha256)


def get(wanted: Wanted, folder: Path, *, using: Tools | None = None, check: Callable[[], None] = free) -> bytes:
    using = using or tools()
    meter = Meter("file", total=0, told=NoListener(), now=using.clock.now)
    return download(wanted, place(folder), tools=using, check=check, meter=meter).read_bytes()


def finals(folder: Path) -> list[bytes]:
    """What lies under final names."""
    return [each.read_bytes() for each in (folder / "final").glob("*")]


@pytest.mark.parametrize(
    "fault", ["", *(each for each in LIES if each not in FATAL_ALONE and each != "patience")]
)
def test_one_lie_is_mended(tmp_path: Path, lie: Any, fault: str):
    """CASES K1, K2; A13 row 6: a part goes again to the only mirror there is, and the file is right."""
    server = lie(BODY, "", fault)
    server.elsewhere = lie().url

    assert get(server.wanted(), tmp_path, using=impatient() if fault in SLOW else tools()) == BODY
    assert finals(tmp_path) == [BODY]
    assert list((tmp_path / "partial").iterdir()) == []
    assert len(server.requests) < 50


@pytest.mark.parametrize(("fault", "code"), FATAL_ALONE.items())
def test_one_lie_that_cannot_be_mended(tmp_path: Path, lie: Any, fault: str, code: int):
    """Refused, led in circles, another file, other bytes: told at once as what it is."""
    server = lie(BODY, "", fault)
    with pytest.raises(TrainerError) as caught:
        get(server.wanted(), tmp_path)

    assert code == caught.value.code
    assert server.url in str(caught.value)
    assert finals(tmp_path) == []


@pytest.mark.parametrize("fault", [each for each in LIES if each != "patience"])
def test_a_server_that_always_lies_comes_to_an_end(tmp_path: Path, lie: Any, fault: str):
    """A right file or an error after a bounded number of tries, whatever it does."""
    server = lie(BODY, always=fault)
    server.elsewhere = lie().url
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
def test_another_mirror_helps(tmp_path: Path, lie: Any, fault: str):
    """The first mirror always lies, the second never: the file is right."""
    server, honest = lie(BODY, always=fault), lie()
    using = impatient(connections=2) if fault in SLOW else tools(tries=2, connections=2)
    found = get(server.wanted(honest.url), tmp_path, using=using)

    assert found == BODY
    assert finals(tmp_path) == [BODY]


@settings(max_examples=50)
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
    folder = Path(os.environ["PYTEST_TMP"]) / f"{random.getrandbits(64):x}"
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


def test_what_every_request_says(tmp_path: Path, lie: Any):
    """Contract A8: a range that is never empty, the ETag it must have, no encoding; each byte once."""
    server = lie()
    get(server.wanted(), tmp_path)
    gets = server.gets()
    ranges = sorted(tuple(map(int, each["Range"].removeprefix("bytes=").split("-"))) for each in gets)

    assert [(start, min(start + PART, SIZE) - 1) for start in range(0, SIZE, PART)] == ranges
    assert {server.etag} == {each["If-Match"] for each in gets}
    assert {"identity"} == {each["Accept-Encoding"] for _, _, each in server.requests}
    assert server.requests[0][0] == "HEAD"
    assert server.sent == SIZE


@pytest.mark.parametrize("said", [{"head": False}, {"ranges": False}, {"ranges": False, "lengths": False},
                                  {"head": False, "ranges": False, "lengths": False, "etag": ""},
                                  {"etag": ""}, {"lengths": False}])  # fmt: skip
@pytest.mark.parametrize("known", [True, False])
def test_servers_that_can_do_little(tmp_path: Path, lie: Any, said: dict[str, Any], known: bool):
    """Without HEAD (a URL signed for GET), ranges, lengths or ETags, with and without a digest in the job."""
    server = lie(BODY, **said)

    assert get(server.wanted(known=known), tmp_path) == BODY


@pytest.mark.parametrize("known", [True, False])
def test_an_empty_file(tmp_path: Path, lie: Any, known: bool):
    """No range is asked for, since an empty range means the whole file."""
    assert get(lie(b"").wanted(known=known), tmp_path) == b""


def test_one_stream_that_breaks_begins_again(tmp_path: Path, lie: Any):
    """CASES K1: nothing of the first try is appended to."""
    server = lie(BODY, "drop", "broken", ranges=False)

    assert get(server.wanted(), tmp_path) == BODY


def test_a_file_mirror(tmp_path: Path, lie: Any):
    """``file:`` URLs are mirrors like others: verified, copied, and left alone."""
    there = tmp_path / "a b"
    there.write_bytes(BODY)
    wanted = Wanted("file", (there.as_uri(),), SIZE, hashlib.sha256(BODY).hexdigest())
    missing = Wanted("file", ((tmp_path / "no").as_uri(),), SIZE, hashlib.sha256(BODY).hexdigest())

    assert get(wanted, tmp_path) == BODY == there.read_bytes()
    (tmp_path / "final" / str(wanted.sha256)).unlink()
    with pytest.raises(InputMissing):
        get(missing, tmp_path)


def test_credentials_do_not_follow_to_another_host(tmp_path: Path, lie: Any):
    """A cross-host redirect keeps the range and drops the token."""
    server, store = lie(BODY, always="redirect"), lie()
    server.elsewhere = store.url.replace("127.0.0.1", "localhost")
    wanted = server.wanted(credentials={"Authorization": "Bearer VerySecret"})

    assert get(wanted, tmp_path) == BODY
    assert all(each["Authorization"] == "Bearer VerySecret" for each in server.gets())
    assert all("Authorization" not in each and "Range" in each for each in store.gets())


def test_a_host_that_must_not_be_asked(tmp_path: Path, lie: Any):
    """A redirect into the platform's network is refused as the URL itself would be (64)."""
    server = lie(BODY, always="redirect")
    server.elsewhere = "http://127.0.0.2:1/latest/meta-data"
    with pytest.raises(BadJob, match=r"127\.0\.0\.2 is not an address of the public internet"):
        get(server.wanted(), tmp_path)


def test_patience_is_shown_when_asked_for(tmp_path: Path, lie: Any):
    """429 with Retry-After: nobody is asked before, and waiting is left to the clock."""

    class Watch:
        def __init__(self) -> None:
            self.skipped, self.waits = 0.0, []

        def now(self) -> float:
            return time.monotonic() + self.skipped

        def wait(self, event: threading.Event, seconds: float) -> bool:
            self.waits.append(seconds)
            self.skipped += seconds
            return event.is_set()

    clock, server = Watch(), lie(BODY, "patience")
    using = tools(connections=1)

    assert get(server.wanted(), tmp_path, using=Tools(using.web, using.patience, clock, using.chance)) == BODY
    assert 6.0 < max(clock.waits) <= 7.0


def test_a_url_that_expires_in_mid_file(tmp_path: Path, lie: Any):
    """66, what came is kept, and a fresh URL of the same file fetches only the rest."""
    server = lie(BODY, "", "", "", "", always="refused")
    with pytest.raises(InputMissing, match="answered 403"):
        get(server.wanted(), tmp_path, using=tools(connections=1))
    before, server.always = server.sent, ""
    fresh = Wanted("file", (f"{server.url}?X-Amz-Signature=new",), SIZE, hashlib.sha256(BODY).hexdigest())

    assert get(fresh, tmp_path) == BODY
    assert before == 4 * PART
    assert server.sent == SIZE


def test_another_etag_begins_the_file_anew(tmp_path: Path, lie: Any):
    """Bytes of two versions are never mixed, also where no digest would tell."""
    server = lie(BODY, "", "", "new_file")
    found = get(server.wanted(known=False), tmp_path, using=tools(connections=1))

    assert found == server.body
    assert found != BODY


def test_without_a_digest_mirrors_are_not_mixed(tmp_path: Path, lie: Any):
    """Two mirrors with different files of one length: the result is one of them."""
    one, two = lie(BODY, "", "", always="broken"), lie(body_of(SIZE, seed=1))
    found = get(one.wanted(two.url, known=False), tmp_path, using=tools(connections=1, tries=2))

    assert found == two.body


def test_a_wrong_mixture_is_not_mixed_again(tmp_path: Path, lie: Any):
    """One of two mirrors is corrupt: wrong bytes are put away, and one mirror alone has the file."""
    corrupt, good = lie(BODY, always="wrong_bytes"), lie(BODY, "broken")
    wanted = good.wanted(corrupt.url)

    assert get(wanted, tmp_path, using=tools(connections=2)) == BODY


def test_mirrors_that_agree_on_another_file_mean_a_wrong_job(tmp_path: Path, lie: Any):
    """64, since a later try would end alike; mirrors that differ are a dependency that failed (69)."""
    one, two, three = lie(BODY[:-1]), lie(BODY[:-1]), lie(BODY[:-2])
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


def test_a_complete_partial_needs_no_request_for_bytes(tmp_path: Path, lie: Any):
    """CASES K3: nothing is asked for, so nothing can answer 416; the digest decides."""
    server = lie()
    left_behind(tmp_path, BODY, server.wanted(), done=LENGTHS, etag=server.etag)

    assert get(server.wanted(), tmp_path) == BODY
    assert server.gets() == []


@pytest.mark.parametrize("data", [BODY[:-1] + bytes([BODY[-1] ^ 1]), BODY + b"!", BODY[:-1]])
def test_a_wrong_partial_is_begun_anew_once(tmp_path: Path, lie: Any, data: bytes):
    """CASES K3: another digest, too long, too short: the file comes once, whole."""
    server = lie()
    left_behind(tmp_path, data, server.wanted(), done=LENGTHS, etag=server.etag)

    assert get(server.wanted(), tmp_path) == BODY
    assert server.sent == SIZE


def test_a_partial_of_another_version_is_begun_anew(tmp_path: Path, lie: Any):
    """The ETag is another one than that of the bytes that are there."""
    server = lie()
    left_behind(tmp_path, BODY, server.wanted(), done=[*LENGTHS[:4], 0, 0, 0, 0], etag='"old"')

    assert get(server.wanted(), tmp_path) == BODY
    assert server.sent == SIZE


def test_only_durable_bytes_count_on_a_machine_that_was_started_anew(tmp_path: Path, lie: Any):
    """Positions after the last sync are believed while the machine ran on, and not after a power cut."""
    for boot, more in ((boot_id(), 0), ("another", LENGTHS[1])):
        server = lie()
        wanted = server.wanted()
        folder = tmp_path / (boot or "none")
        left_behind(folder, BODY, wanted, done=[LENGTHS[0], 0, *LENGTHS[2:]], etag=server.etag, boot=boot)
        written = b"".join(each.to_bytes(8, "little") for each in LENGTHS)
        (folder / "partial" / wanted.key / "positions").write_bytes(written)

        assert get(wanted, folder) == BODY
        assert more == server.sent


def test_a_wish_to_stop_keeps_what_came(tmp_path: Path, lie: Any):
    """Noticed between two looks although the server is silent; the next start fetches the rest."""
    reached = threading.Event()

    def hold(sent: int) -> None:
        if sent >= SIZE // 2:
            reached.set()
            server.released.wait(5.0)

    server = lie(hold=hold)

    def check() -> None:
        if reached.is_set():
            raise StopRequested("interrupted")

    with pytest.raises(StopRequested):
        get(server.wanted(), tmp_path, check=check, using=tools(connections=2))
    server.hold = None

    assert get(server.wanted(), tmp_path) == BODY
    assert server.sent <= SIZE + 4 * 16384


def test_a_part_that_lags_is_asked_for_again(tmp_path: Path, lie: Any):
    """A slow connection among fast ones costs a second request, not the wait."""
    slow, fast = lie(BODY, "", "", "", "", "trickle"), lie()
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


def test_a_disk_that_fills_keeps_what_came(tmp_path: Path, lie: Any, monkeypatch: pytest.MonkeyPatch):
    """73; the partial file is gone on with when there is room again."""
    server, write, writes = lie(), os.pwrite, []

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
    before = server.sent

    assert finals(tmp_path) == []
    assert get(server.wanted(), tmp_path) == BODY
    assert server.sent - before < 0.6 * SIZE


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


def test_a_kill_at_half_costs_half(tmp_path: Path, lie: Any):
    """A13 row 5: kill -9 at 50 %; the next process fetches at most 52 % again, parts begun included."""
    body = body_of(64 << 20)
    reached, killed = threading.Event(), threading.Event()

    def hold(sent: int) -> None:
        if sent >= len(body) // 2:
            reached.set()
            killed.wait(10.0)

    server = lie(body, hold=hold)
    process = child(server, tmp_path)
    begin(process)
    assert reached.wait(30.0)
    time.sleep(0.3)  # what was sent is read
    before, server.hold = server.sent, None
    process.kill()
    process.communicate()
    killed.set()
    using = tools(part_bytes=0, connections=8)

    assert get(server.wanted(), tmp_path, using=using) == body
    assert server.sent - before < 0.52 * len(body)
    assert list((tmp_path / "partial").iterdir()) == []


def test_two_processes_race_and_both_end_right(tmp_path: Path, lie: Any):
    """A13 row 5: no locks; one downloads, the other waits for it, and the bytes come once."""
    server = lie(body_of(8 << 20))
    racing = [child(server, tmp_path) for _ in range(2)]
    for each in racing:
        begin(each)
    said = [each.communicate(timeout=60)[0].strip() for each in racing]

    assert [str(tmp_path / "final" / hashlib.sha256(server.body).hexdigest())] * 2 == said
    assert [server.body] == finals(tmp_path)
    assert [each.returncode for each in racing] == [0, 0]


def test_waiting_for_a_process_elsewhere_is_told_and_can_be_stopped(tmp_path: Path, lie: Any):
    """One of another container or machine beats: people see why nothing comes, and a stop is noticed."""
    server, told = lie(), []
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


def test_a_disk_that_is_too_small_is_told_before_the_first_byte(tmp_path: Path, lie: Any):
    """A13 row 7: 73 with what is needed, and not one byte fetched."""
    server = lie()
    with pytest.raises(DiskFull, match=r"expected 1\.5 MB \(500\.0 kB to come, 1\.0 MB in reserve, 2 %\)"):
        fetch_files(
            [server.wanted()], place(tmp_path), label="x", tools=tools(), check=free, told=NoListener(),
            reserve=1_000_000, free=lambda folder: SIZE,
        )  # fmt: skip

    assert server.gets() == []
    assert server.sent == 0


def test_secrets_are_in_no_message(tmp_path: Path, lie: Any, caplog: pytest.LogCaptureFixture):
    """Presigned URLs are secrets: not in an error, a repr, or a library's debug log."""
    caplog.set_level("DEBUG")
    server = lie(BODY, always="refused")
    secret = "VerySecret"
    wanted = Wanted("file", (server.url.replace("//", f"//u:{secret}@") + f"?sig={secret}",), SIZE, "0" * 64)
    with pytest.raises(InputMissing) as caught:
        get(wanted, tmp_path)

    assert secret not in str(caught.value) + repr(wanted) + caplog.text
    assert all(each["authorization"].startswith("Basic ") for each in server.gets())
