"""Jobs under faults: what is broken, by whom, and what must be true afterwards. Nothing here has torch.

A job is real but for its ranks, which only write checkpoints and one artifact. Between its supervisor and a
real listener stands a line that loses, repeats and reorders deliveries. Everything is drawn from one seed.
"""

from __future__ import annotations

import collections
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from loopback import reserved_port
from process_helpers import alive, gone, start_supervisor

from app_trainer_sdk.callbacks.flush import deliver_backlog
from app_trainer_sdk.job import load_job
from app_trainer_sdk.listener.desk import Desk
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.receiver import TERMINAL

STEPS, STEP_SECONDS = 8, 0.03
MOST_ATTEMPTS = 6
#: Ends after which a control plane starts a job again.
RETRIED = {70, 71, 72, 75, -9}
#: Goes on from the newest whole checkpoint, says what it does once it is on the disk, and obeys.
RANK = f"""
import hashlib, select
root = folder.parent.parent
(folder / f"pid-{{os.getpid()}}").write_text("")
done = max([int(each.name[5:]) for each in (root / "checkpoints").glob("step-*")], default=0)
def step_file(step):
    beside = root / "checkpoints" / f".{{step}}.{{os.getpid()}}"
    beside.mkdir(parents=True)
    (beside / "whole").write_text(str(step))
    beside.rename(root / "checkpoints" / f"step-{{step:08d}}")
    say("checkpoint", step=step, bytes=1, seconds=0.0, name=f"step-{{step:08d}}")
say("phase", name="train")
for step in range(done + 1, {STEPS + 1}):
    if select.select([line], [], [], {STEP_SECONDS})[0]:
        stop = hear()
        leave(CODES[stop["reason"]], stop["reason"])
    step_file(step)
    say("progress", step=step, total={STEPS}, updates_per_second=1.0, eta_seconds=1.0, seconds=0.1,
        data_seconds=0.0, metrics={{"loss": 1 / step}}, nonfinite=[])
data = b"weights" * 100
(root / "artifacts" / "weights").mkdir(parents=True, exist_ok=True)
(root / "artifacts" / "weights" / "model").write_bytes(data)
digest = hashlib.sha256(data).hexdigest()
output = dict(name="weights", path="artifacts/weights", bytes=len(data), sha256=digest)
say("artifact", **output)
leave(0, "succeeded", outputs=[output], timings={{"train": 0.1}}, step={STEPS})
"""
#: A machine whose clock is set by a day every now and then; for the supervisor's own process.
JUMPING = """
import random, time, datetime
real, moment = time.time, random.Random({seed})
jumps = [moment.choice((-86400.0, 0.0, 86400.0)) for _ in range(64)]
time.time = lambda: real() + jumps[int(real() * 20) % 64]
from app_trainer_sdk import events
now = lambda: datetime.datetime.fromtimestamp(time.time(), datetime.UTC)
events.EventLog.__init__.__kwdefaults__["now"] = now
"""


class BadLine(ThreadingHTTPServer):
    """Passes deliveries on to a listener, badly.

    Args:
        port: the listener's.
        moment: says what happens.
    """

    daemon_threads = True

    def __init__(self, port: int, moment: random.Random) -> None:
        self.port = port
        self.moment = moment
        self.bad = True
        self.counts: collections.Counter[str] = collections.Counter()
        self.old: collections.deque[tuple[str, bytes, dict[str, str]]] = collections.deque(maxlen=20)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.take(self, body)

            def log_message(self, *arguments: Any) -> None:
                """Be silent."""

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/events"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever goes away does so on purpose."""

    def take(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Pass one delivery on: right, or late, twice, after an older one, unanswered, or not at all."""
        kinds = ("right", "lost", "unanswered", "twice", "an old one again", "late", "500")
        kind = self.moment.choices(kinds, (8, 1, 1, 2, 2, 1, 1))[0] if self.bad else "right"
        delivery = (handler.path, body, dict(handler.headers))
        answer = None
        if kind == "late":
            time.sleep(0.1)
        if kind == "an old one again" and self.old:
            self.pass_on(self.moment.choice(self.old))
        if kind not in ("lost", "500"):
            answer = self.pass_on(delivery)
            self.old.append(delivery)
        if kind == "twice":
            answer = self.pass_on(delivery)
        self.counts[kind if answer or kind in ("lost", "500") else "nobody there"] += 1
        if kind == "500":
            answer = 500, b""
        if answer is None or kind == "unanswered":
            handler.close_connection = True
            return
        handler.send_response(answer[0])
        handler.send_header("Content-Length", str(len(answer[1])))
        handler.end_headers()
        handler.wfile.write(answer[1])

    def pass_on(self, delivery: tuple[str, bytes, dict[str, str]]) -> tuple[int, bytes] | None:
        """The listener's answer, if it is there."""
        path, body, headers = delivery
        connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except OSError:
            return None
        except Exception:  # noqa: BLE001 - killed in the middle of an answer
            return None
        finally:
            connection.close()


class Listening:
    """A real listener that can be killed and comes back with what it wrote."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.process: subprocess.Popen[bytes] | None = None
        self.kills = 0

    def begin(self) -> None:
        words = [str(self.folder), "--port", str(self.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "app_trainer_sdk.listener.command", *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def wait(self) -> None:
        """Until it answers."""
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            with suppress(OSError):
                connection = HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/api/training/jobs")
                connection.getresponse().read()
                connection.close()
                return
            time.sleep(0.05)
        raise AssertionError("the listener does not come back")


@contextmanager
def listening(folder: Path) -> Iterator[Listening]:
    """A listener at a free port, gone afterwards."""
    with reserved_port() as port:
        listener = Listening(folder, port)
        listener.begin()
        try:
            listener.wait()
            yield listener
        finally:
            listener.kill()


class Campaign:
    """Jobs one after the other; ``counts`` says what happened to them."""

    def __init__(self, folder: Path, listener: Listening, seed: int) -> None:
        self.folder = folder
        self.listener = listener
        self.moment = random.Random(seed)
        self.line = BadLine(listener.port, random.Random(seed + 1))
        self.counts: collections.Counter[str] = collections.Counter()

    def job(self, number: int) -> None:
        """Live one job to its end, then compare what was told with what is there."""
        folder = self.folder / f"job-{number}"
        folder.mkdir()
        name = f"job-{number}"
        asked = {"job_id": name, "callbacks": {"url": self.line.url, "mode": "control"}}
        codes: list[int] = []
        while not codes or (codes[-1] in RETRIED and len(codes) < MOST_ATTEMPTS):
            codes.append(self._attempt(folder, asked, len(codes) + 1, calm=len(codes) + 1 == MOST_ATTEMPTS))
        self.counts["jobs"] += 1
        self.counts["attempts"] += len(codes)
        self._settle(folder)
        self._compare(folder / "dir", name, codes)

    def _attempt(self, folder: Path, asked: dict[str, Any], attempt: int, *, calm: bool) -> int:
        environment = {"APP_TRAINER_ATTEMPT": str(attempt), "APP_TRAINER_UPLOAD_WAIT_SECONDS": "2",
                       "APP_TRAINER_ALLOW_HOSTS": "127.0.0.1", "APP_TRAINER_GRACE_SECONDS": "6"}  # fmt: skip
        jumps = JUMPING.format(seed=self.moment.random()) if self.moment.random() < 0.5 else ""
        self.counts["clocks that jump"] += bool(jumps)
        process = start_supervisor(folder, RANK, job=asked, before=jumps, environment=environment)
        fault = "none" if calm else self.moment.choice(FAULTS)
        self.counts[f"fault: {fault}"] += 1
        if fault != "none":
            self._wait_for_rank(folder, attempt, process)
            time.sleep(self.moment.random() * STEPS * STEP_SECONDS * 1.2)
            getattr(self, "_" + fault.replace(" ", "_"))(folder, attempt, process)
        code = process.wait(120)
        self.counts[f"code {code}"] += 1
        for pid in self._ranks(folder, attempt):
            assert gone(pid), f"rank {pid} outlives its supervisor"
        return code

    def _rank_killed(self, folder: Path, attempt: int, process: subprocess.Popen[bytes]) -> None:
        for pid in self._ranks(folder, attempt):
            if alive(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, self.moment.choice((signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)))

    def _supervisor_killed(self, folder: Path, attempt: int, process: subprocess.Popen[bytes]) -> None:
        process.kill()

    def _interrupted(self, folder: Path, attempt: int, process: subprocess.Popen[bytes]) -> None:
        process.terminate()

    def _listener_killed(self, folder: Path, attempt: int, process: subprocess.Popen[bytes]) -> None:
        self.listener.kill()
        time.sleep(self.moment.random() * 0.3)
        self.listener.begin()

    def _both_killed(self, folder: Path, attempt: int, process: subprocess.Popen[bytes]) -> None:
        self._listener_killed(folder, attempt, process)
        process.kill()

    def _ranks(self, folder: Path, attempt: int) -> list[int]:
        place = folder / "dir" / "attempts" / str(attempt)
        return [int(each.name.removeprefix("pid-")) for each in place.glob("pid-*")]

    def _wait_for_rank(self, folder: Path, attempt: int, process: subprocess.Popen[bytes]) -> None:
        limit = time.monotonic() + 60
        while not self._ranks(folder, attempt) and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.01)

    def _settle(self, folder: Path) -> None:
        """The line and the listener recover, and what nobody heard is sent again."""
        self.line.bad = False
        self.listener.wait()
        job = load_job(folder / "job.json")
        waiting, _, left = deliver_backlog(job.callbacks, JobDirectory(folder / "dir"), 60.0)
        self.line.bad = True
        self.counts["sent again at the end"] += waiting

        assert left == 0

    def _compare(self, directory: Path, name: str, codes: list[int]) -> None:
        """What the listener recorded is what is on the disk."""
        result = json.loads((directory / "result.json").read_text())
        desk = Desk(self.listener.folder)  # as one that was killed now would read it
        record, heard = desk.jobs()[name], desk.events(name)
        said = [event for attempt in range(1, len(codes) + 1) for event in _said(directory, attempt)]

        assert codes[-1] == result["exit_code"] == 0
        assert (record.state, record.code) == ("succeeded", 0)
        for events in (said, heard):
            ids = [event["id"] for event in events]
            assert len(ids) == len(set(ids))
        known = {event["id"]: event for event in said}
        assert all(known[event["id"]]["type"] == event["type"] for event in heard)
        self._compare_attempts(directory, codes, said, heard)
        _compare_claims(directory, heard)
        self.counts["events heard"] += len(heard)

    def _compare_attempts(
        self, directory: Path, codes: list[int], said: list[dict[str, Any]], heard: list[dict[str, Any]]
    ) -> None:
        last = max(each["attempt"] for each in said)
        assert len(codes) - last in (0, 1)  # one that finds the job finished says nothing
        for attempt, code in enumerate(codes[:last], 1):
            ends = [each for each in said if each["attempt"] == attempt and "code" in each]
            terminal = directory / "attempts" / str(attempt) / "terminal.json"
            told = [each for each in heard if each["attempt"] == attempt and "code" in each]

            assert len(ends) <= 1
            if code != -9:
                assert [each["code"] for each in ends] == [code]
            assert terminal.exists() == (bool(ends) and ends[0]["type"] in TERMINAL)
            if terminal.exists():
                assert json.loads(terminal.read_text()) == ends[0]
            if any("code" in each for each in told):
                assert (
                    "code" in told[-1] or max(told, key=lambda each: int(each["seq"]))["seq"] == ends[0]["seq"]
                )


#: What happens to an attempt beside its bad line.
FAULTS = (
    "none", "rank killed", "supervisor killed", "interrupted", "listener killed", "both killed",
)  # fmt: skip


def _said(directory: Path, attempt: int) -> list[dict[str, Any]]:
    """Events of an attempt; its end is on the disk before its line is, and counts from then on."""
    place = directory / "attempts" / str(attempt)
    path, terminal = place / "events.jsonl", place / "terminal.json"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    said = [json.loads(line) for line in lines]
    end = [json.loads(terminal.read_bytes())] if terminal.exists() else []
    return said + [each for each in end if each["id"] not in [event["id"] for event in said]]


def _compare_claims(directory: Path, heard: list[dict[str, Any]]) -> None:
    """Each checkpoint and artifact that was told of is there, whole."""
    steps = sorted(int(each.name.removeprefix("step-")) for each in (directory / "checkpoints").glob("step-*"))
    assert steps == list(range(1, STEPS + 1))
    for event in heard:
        if event["type"] == "job.checkpoint":
            assert (directory / "checkpoints" / event["checkpoint"]["name"] / "whole").exists()
        if event["type"] == "job.artifact":
            data = (directory / "artifacts" / event["artifact"]["name"] / "model").read_bytes()
            assert (len(data), hashlib.sha256(data).hexdigest()) == (
                event["artifact"]["bytes"], event["artifact"]["sha256"],
            )  # fmt: skip
    assert [event["type"] for event in heard].count("job.succeeded") == 1
