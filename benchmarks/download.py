"""Measures downloads on loopback: resumed after a kill, over a limited line, and as fast as the machine goes.

::

    python benchmarks/download.py [--mebibytes 512] [--pairs 5] [--folder /dev/shm] [--tls] [WHAT ...]

* kill: ``kill -9`` at 50 %, then start again: bytes fetched again, beside huggingface_hub (bound 52 %).
* limited: each connection gets 20 MB/s, as networks do: eight connections beside one (bound 7 times), and
  taking turns: bare urllib3 with the same ranges and writes (bound 0.9 of its rate), this SDK without its
  digest and with it (bound 10 % of the wall time).
* fast: the same without a limit, and huggingface_hub's own download.
* lines: what the digest adds where a connection gets 20, 40, 60, and 80 MB/s.

With ``--tls`` all of it goes over TLS. The server is a process of its own (``download_server.py``). Without a
limit server, client and digest have the machine's processors full: SHA-256 costs 0.6 seconds a GiB, reading
back 0.2, and only a processor that is idle hides them. Peers verify no digest; that work is in our numbers and
told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

from app_trainer_sdk.transfers.wanted import Patience

HERE = Path(__file__).parent
CERTIFICATE = HERE.parent / "tests" / "app_trainer_sdk" / "transfers" / "localhost.pem"
LIMIT = 20_000_000
LINES = (20_000_000, 40_000_000, 60_000_000, 80_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure downloads on loopback.")
    parser.add_argument("--mebibytes", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm"))
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("what", nargs="*", default=["kill", "limited", "fast"])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as name:
        folder = Path(name)
        source, sha256 = make_file(folder / "source", chosen.mebibytes << 20)
        command = [sys.executable, str(HERE / "download_server.py"), str(source), sha256]
        if chosen.tls:
            command.append(str(CERTIFICATE))
            os.environ["SSL_CERT_FILE"] = str(CERTIFICATE)  # all ways trust what it names, and nothing else
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            scheme = "https" if chosen.tls else "http"
            url = f"{scheme}://127.0.0.1:{server.stdout.readline().strip()}"
            size = source.stat().st_size
            part = Patience().part_of(size)
            os.environ.update(URL=url, SHA256=sha256, SIZE=str(size), PART=str(part))
            for what in chosen.what:
                WHAT[what](url, folder, chosen.pairs)
        finally:
            server.kill()


def make_file(path: Path, size: int) -> tuple[Path, str]:
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for seed in range(size >> 20):
            piece = random.Random(seed).randbytes(1 << 20)
            file.write(piece)
            digest.update(piece)
    return path, digest.hexdigest()


def ask(url: str) -> int:
    with urllib.request.urlopen(url) as answer:
        return int(answer.read())


class Took(NamedTuple):
    """What one way took, imports apart: wall seconds, processor seconds, and MiB of memory at its peak."""

    seconds: float
    processor: float
    mebibytes: float


# Ways to download. Each runs in a process of its own, and stamps when it begins and when its file is whole.


def stamp() -> None:
    print(time.time(), time.process_time(), flush=True)


def ours(folder: Path, *, connections: int = 8, digest: bool = True) -> None:
    import urllib3  # noqa: F401 - the SDK loads it with its first connection; here, as for all, imports are apart

    from app_trainer_sdk.transfers import engine
    from app_trainer_sdk.transfers.addresses import Guard
    from app_trainer_sdk.transfers.download import Destination, download
    from app_trainer_sdk.transfers.progress import Meter, NoListener
    from app_trainer_sdk.transfers.tools import Tools
    from app_trainer_sdk.transfers.wanted import Wanted
    from app_trainer_sdk.transfers.web import Web

    sha256 = os.environ["SHA256"]
    if not digest:

        class NoDigest(engine.TailDigest):  # type: ignore[misc]
            def _next(self) -> int:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._allowed > self._read)
                    self._read = self._allowed
                    self._changed.notify_all()
                    return 0 if self._closed else self._next()

            @property
            def sha256(self) -> str:
                return sha256

        engine.TailDigest = NoDigest  # type: ignore[misc]
    tools = Tools(Web(Guard(("127.0.0.1",))), Patience(connections=connections))
    wanted = Wanted("file", (os.environ["URL"] + "/file",), int(os.environ["SIZE"]), sha256)
    place = Destination(folder / "partial", lambda sha256: folder / "final")
    meter = Meter("file", total=0, told=NoListener(), now=time.monotonic)
    stamp()
    download(wanted, place, tools=tools, check=lambda: None, meter=meter)
    stamp()


def bare(folder: Path) -> None:
    import urllib3

    pool = urllib3.connection_from_url(os.environ["URL"], maxsize=8)
    size, part = int(os.environ["SIZE"]), int(os.environ["PART"])
    starts, lock = list(range(0, size, part))[::-1], threading.Lock()
    stamp()
    folder.mkdir(parents=True, exist_ok=True)
    file = os.open(folder / "final", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, size)

    def work() -> None:
        while True:
            with lock:
                if not starts:
                    return
                at = starts.pop()
            said = {"Range": f"bytes={at}-{min(size, at + part) - 1}", "Accept-Encoding": "identity"}
            answer = pool.request("GET", "/file", headers=said, preload_content=False)
            while piece := answer.read1(512 * 1024):
                os.pwrite(file, piece, at)
                at += len(piece)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    os.fsync(file)
    stamp()


def hub(folder: Path) -> None:
    os.environ.update(HF_ENDPOINT=os.environ["URL"], HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_PROGRESS_BARS="1")
    from huggingface_hub import hf_hub_download

    stamp()
    hf_hub_download("a/b", "model.safetensors", revision="1" * 40, cache_dir=folder)
    stamp()


WAYS = {
    "ours": ours, "ours, no digest": lambda folder: ours(folder, digest=False),
    "ours, 1 connection": lambda folder: ours(folder, connections=1), "bare urllib3": bare,
    "huggingface_hub": hub,
}  # fmt: skip


def start(way: str, folder: Path) -> tuple[subprocess.Popen[str], list[float]]:
    """A process that downloads, and its stamp when it began (imports done)."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--way", way, str(folder)], stdout=subprocess.PIPE, text=True
    )
    return process, [float(word) for word in process.stdout.readline().split()]


def timed(way: str, folder: Path) -> Took:
    """From the first request to the whole file."""
    process, began = start(way, folder)
    ended = [float(word) for word in process.stdout.readline().split()]
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, way
    process.stdout.close()
    shutil.rmtree(folder, ignore_errors=True)
    return Took(ended[0] - began[0], ended[1] - began[1], usage.ru_maxrss / 1024)


def kill(url: str, folder: Path, pairs: int) -> None:
    size = int(os.environ["SIZE"])
    for way in ("ours", "huggingface_hub"):
        shares = []
        for _ in range(min(3, pairs)):
            ask(f"{url}/limit/{2 * LIMIT if way == 'ours' else 16 * LIMIT}")  # about 320 MB/s for both
            before = ask(f"{url}/stats")
            process, _ = start(way, folder / "k")
            while ask(f"{url}/stats") - before < size // 2:
                time.sleep(0.001)
            process.kill()
            process.wait()
            first = ask(f"{url}/stats")
            process, _ = start(way, folder / "k")
            process.wait()
            shares.append((ask(f"{url}/stats") - first) / size)
            shutil.rmtree(folder / "k", ignore_errors=True)
        told = ", ".join(f"{each:.1%}" for each in shares)
        print(f"kill -9 at 50 %, fetched again: {way:16} {told}" + ("  (bound 52 %)" if way == "ours" else ""))
    ask(f"{url}/limit/0")


def limited(url: str, folder: Path, pairs: int) -> None:
    ask(f"{url}/limit/{LIMIT}")
    for _ in range(min(2, pairs)):
        one, eight = timed("ours, 1 connection", folder / "l"), timed("ours", folder / "l")
        told = f"one {one.seconds:.2f} s, eight {eight.seconds:.2f} s, ratio {one.seconds / eight.seconds:.2f}"
        print(f"20 MB/s a connection: {told}  (bound 7)", flush=True)
    compare("20 MB/s a connection", ("bare urllib3", "ours, no digest", "ours"), folder / "l", max(3, pairs))
    ask(f"{url}/limit/0")


def fast(url: str, folder: Path, pairs: int) -> None:
    compare("no limit", ("bare urllib3", "ours, no digest", "ours", "huggingface_hub"), folder / "f", pairs)


def lines(url: str, folder: Path, pairs: int) -> None:
    for limit in LINES:
        ask(f"{url}/limit/{limit}")
        line = f"{limit // 1_000_000} MB/s a connection"
        compare(line, ("ours, no digest", "ours"), folder / "d", pairs)
    ask(f"{url}/limit/0")


def compare(line: str, ways: tuple[str, ...], folder: Path, pairs: int) -> None:
    """Ways taking turns, each beside the first way of the same round; the first round warms up."""
    took: dict[str, list[Took]] = {way: [] for way in ways}
    for round_number in range(pairs + 1):
        for way in ways:
            one = timed(way, folder)
            if round_number:
                took[way].append(one)
    size = int(os.environ["SIZE"])
    for way in ways:
        mine = took[way]
        paired = statistics.median(a.seconds / b.seconds for a, b in zip(took[ways[0]], mine, strict=True))
        rate = size / statistics.median(each.seconds for each in mine) / 1e6
        processor = statistics.median(each.processor for each in mine) * (1 << 30) / size
        memory = max(each.mebibytes for each in mine)
        told = (
            f"{paired:.2f} of the rate of {ways[0]}, paired; {processor:.2f} processor seconds a GiB, "
            f"{memory:.0f} MiB"
        )
        print(f"{line}: {way:16} median {rate:6.0f} MB/s, {told}", flush=True)
    both = zip(took["ours"], took["ours, no digest"], strict=True)
    added = statistics.median(a.seconds / b.seconds for a, b in both) - 1
    print(f"{line}: the digest adds {added:+.1%} of the wall time, paired  (bound 10 %)", flush=True)


WHAT = {"kill": kill, "limited": limited, "fast": fast, "lines": lines}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--way"]:
        with contextlib.suppress(BrokenPipeError):
            WAYS[sys.argv[2]](Path(sys.argv[3]))
    else:
        main()
