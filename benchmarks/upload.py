"""What an upload costs: memory for a file of any size, and rate beside the bare HTTP library's.

::

    python benchmarks/upload.py [--gib 4] [--pairs 5]

A sparse file of so many GiB goes in parts to a sink in a process of its own, over loopback; the sink throws
bytes away and takes each part. Printed: how much the uploading process grew meanwhile (at most 32 MiB are
promised), the rate of reading for digests (of the whole and of its parts, before anything is asked) and of
sending, and that of urllib3 alone putting the same parts over as many connections. Then checkpoints are
uploaded beside a process for each processor that does nothing but compute, as training would, and without
them, in turns: what computing keeps of its rate. (The sink stands back then: a store is another machine.)
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import urllib3
from download_server import next_head

from app_trainer_sdk.checkpoints import MANIFEST
from app_trainer_sdk.outputs.checkpoints import CheckpointUploads
from app_trainer_sdk.outputs.sender import Sender
from app_trainer_sdk.transfers.addresses import Guard
from app_trainer_sdk.transfers.effort import Effort, UploadTools
from app_trainer_sdk.transfers.grants import Offer, Target
from app_trainer_sdk.transfers.outgoing import Outgoing, Part, examine, pieces
from app_trainer_sdk.transfers.progress import Meter, NoListener
from app_trainer_sdk.transfers.upload import upload
from app_trainer_sdk.transfers.web import Web

MIB = 1 << 20
PROMISED_MIB = 32


def sink() -> None:
    """Take PUTs and forget them, one thread a connection; prints its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_take, args=(connection,), daemon=True).start()


def _take(connection: socket.socket) -> None:
    buffer = bytearray(MIB)
    with connection:
        while (found := next_head(connection)) is not None:
            head, rest = found
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
            left = length - len(rest)
            while left > 0:
                left -= connection.recv_into(buffer, min(left, MIB))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")


class SinkGrants:
    """Grants whatever is asked."""

    def __init__(self, url: str) -> None:
        self._url = url

    def grant(self, file: Outgoing) -> Offer:
        return Offer(upload_id="u")

    def parts(self, upload_id: str, wanted: Sequence[Part]) -> Mapping[int, Target]:
        return {each.number: Target(f"{self._url}/{each.number}", {}, 900.0) for each in wanted}

    def stored(self, upload_id: str) -> Mapping[int, str]:
        return {}

    def complete(self, upload_id: str) -> str:
        return ""


class Memory:
    """The most that this process has held since it was begun, beyond what it held then."""

    def __init__(self) -> None:
        self.before = self.most = self._now()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def growth_mib(self) -> float:
        self._ended.set()
        self._thread.join()
        return (self.most - self.before) / MIB

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.most = max(self.most, self._now())

    @staticmethod
    def _now() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bare(path: Path, url: str, size: int, part: int, connections: int) -> float:
    """Seconds that urllib3 alone takes for the same parts."""
    pool = urllib3.PoolManager(maxsize=connections)

    def body(begin: int, length: int) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(begin)
            yield from pieces(file, length)

    def put(begin: int) -> None:
        length = min(part, size - begin)
        pool.request("PUT", url, body=body(begin, length), headers={"Content-Length": str(length)})

    began = time.monotonic()
    with ThreadPoolExecutor(connections) as threads:
        list(threads.map(put, range(0, size, part)))
    return time.monotonic() - began


def compute(seconds: float) -> int:
    """Pieces of work that one process for each processor does meanwhile, all together."""
    code = (
        "import hashlib, sys, time\nend, count = time.monotonic() + float(sys.argv[1]), 0\n"
        "data = bytes(1 << 20)\n"
        "while time.monotonic() < end:\n    hashlib.sha256(data).digest()\n    count += 1\nprint(count)"
    )
    command = [sys.executable, "-c", code, str(seconds)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(os.cpu_count() or 1)]
    return sum(int(worker.communicate()[0]) for worker in workers)


def beside(folder: Path, url: str, pairs: int) -> None:
    """What computing keeps of its rate while checkpoints go up."""
    sender = Sender(SinkGrants(url), UploadTools(Web(Guard(("127.0.0.1",))))).beside_training()
    shares = []
    for number in range(pairs):
        alone = compute(3.0)
        place = folder / f"step-{number + 1:08d}"
        place.mkdir()
        (place / "model.safetensors").touch()
        os.truncate(place / "model.safetensors", 2 << 30)
        (place / MANIFEST).write_text('{"files": {}, "step": 1, "run": "j"}')
        uploads = CheckpointUploads(sender, folder / "aside", rows=folder)
        uploads.saved(place)
        shares.append(compute(3.0) / alone)
        uploads.drop()
    print(
        f"computing beside checkpoint uploads keeps {statistics.median(shares):.3f} of its rate ({pairs} pairs)"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--pairs", type=int, default=5)
    chosen = parser.parse_args()
    size = int(chosen.gib * 1024) * MIB
    process = subprocess.Popen([sys.executable, __file__, "--sink"], stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "weights.safetensors"
            path.touch()
            os.truncate(path, size)
            measure(path, url, size)
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)  # and of the threads that it begins from now on
            beside(Path(folder), url, chosen.pairs)
    finally:
        process.kill()
        process.wait()


def measure(path: Path, url: str, size: int) -> None:
    effort = Effort()
    tools = UploadTools(Web(Guard(("127.0.0.1",))), effort)
    bare(path, url, min(size, 64 * MIB), effort.part_bytes, effort.connections)  # both are warm then
    memory = Memory()
    began = time.monotonic()
    file = examine(path, kind="artifact", name="a", path=path.name, check=lambda: None)
    examined = time.monotonic()
    meter = Meter("upload", total=size, told=NoListener(), now=tools.clock.now)
    upload(file, SinkGrants(url), tools=tools, check=lambda: None, meter=meter)
    sent = time.monotonic()
    growth = memory.growth_mib()
    alone = bare(path, url, size, effort.part_bytes, effort.connections)
    print(f"{size / 1e9:.2f} GB in {len(file.part_digests)} parts over {effort.connections} connections")
    print(f"memory grew by {growth:.1f} MiB, promised {PROMISED_MIB}")
    rates = [size / 1e6 / seconds for seconds in (examined - began, sent - examined, alone)]
    print("digests {:,.0f} MB/s, sending {:,.0f} MB/s, urllib3 alone {:,.0f} MB/s".format(*rates))
    print(f"sending is {rates[1] / rates[2]:.2f} times as fast as urllib3 alone")
    if growth > PROMISED_MIB:
        sys.exit(1)


if __name__ == "__main__":
    sink() if sys.argv[1:] == ["--sink"] else main()
