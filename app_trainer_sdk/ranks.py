"""Owns the processes that train: how they are begun, heard, told to stop, ended, and what their ends mean.

Torch-free. Each rank leads a session of its own and has a line of its own. This file must not know events,
reports or what a rank says; of several ranks only rank 0 is heard.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk.errors import ExitCode, PeerFailed, StopRequested, TrainerError
from app_trainer_sdk.files import read_json
from app_trainer_sdk.limits import processors
from app_trainer_sdk.outcome import describe_failure, outcome_document
from app_trainer_sdk.redaction import without_secret_variables
from app_trainer_sdk.start import START

LOG_TAIL_LINES = 12
#: From "another rank failed" to the kill: enough to leave a save behind, too short to look like a hang.
PEER_SECONDS = 5.0
HOST = "127.0.0.1"
PROGRAM = (sys.executable, "-m", "app_trainer_sdk.training.rank")


class Member:
    """One rank's process, with its end of the line."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.outcome = folder / f"outcome-{number}.json"
        self.log = folder / "logs" / f"rank-{number}.log"
        self.connection, self.theirs = socket.socketpair()
        self.pieces = b""
        self.silent = False
        self.killed = False
        self.ended_at = 0
        self.told: dict[str, Any] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self, command: list[str], environment: Mapping[str, str], descriptors: list[int]) -> None:
        """Start the process in a session of its own; its output goes to its log."""
        self.log.parent.mkdir(exist_ok=True)
        self.outcome.unlink(missing_ok=True)  # of an earlier start of the same attempt
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=descriptors,
                start_new_session=True, env=environment,
            )  # fmt: skip
        self.theirs.close()

    @property
    def status(self) -> int | None:
        """How the process ended, None while it lives or before it began."""
        status = self.process.poll() if self.process is not None else None
        if status is not None and not self.ended_at:
            self.ended_at = time.time_ns()
        return status

    def kill(self) -> None:
        """Kill what is left of the session: loader workers must not outlive their rank."""
        if self.process is None:
            return
        self.killed = self.killed or self.status is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Nothing of it is left afterwards."""
        self.kill()
        if self.process is not None:
            self.process.wait()
        self.connection.close()
        self.theirs.close()


class Ranks:
    """The training processes of one attempt.

    Args:
        folder: the attempt's folder, with its ``start.json``.
        count: how many processes train.
        program: what each of them runs.
    """

    def __init__(self, folder: Path, count: int = 1, *, program: Sequence[str] = PROGRAM) -> None:
        self._folder = folder
        self._program = program
        self._members = [Member(number, folder) for number in range(count)]
        self._selector = selectors.DefaultSelector()
        self._peers_end = float("inf")

    def begin(self) -> None:
        """Start all of them."""
        count = len(self._members)
        with contextlib.ExitStack() as stack:
            # Bound here and handed to rank 0, so that nobody can take the port in between.
            meeting = stack.enter_context(socket.create_server((HOST, 0))) if count > 1 else None
            for member in self._members:
                descriptors = [member.theirs.fileno()]
                if meeting is not None and member.number == 0:
                    descriptors.append(meeting.fileno())
                words = [str(self._folder / START), *map(str, descriptors)]
                port = meeting.getsockname()[1] if meeting is not None else 0
                environment = rank_environment(member.number, count, port)
                self._selector.register(member.connection, selectors.EVENT_READ, member)
                member.begin([*self._program, *words], environment, descriptors)

    @property
    def working(self) -> bool:
        """Whether one of them still lives or has something to say."""
        return any(each.status is None or not each.silent for each in self._members)

    def listen(self, seconds: float) -> list[dict[str, Any]]:
        """What rank 0 says within ``seconds``; returns as soon as there is anything."""
        ended = [each for each in self._members if each.status is not None and not each.silent]
        if all(each.silent for each in self._members):
            self._await_one(seconds)
            return []
        messages: list[dict[str, Any]] = []
        heard = [key.data for key, _ in self._selector.select(timeout=seconds)]
        for member in heard:
            messages += self._hear(member)
        for member in ended:
            # Its end of the line may be open in a process that it left behind.
            if member not in heard:
                self._hush(member)
        return messages

    def tell(self, stop: StopRequested) -> None:
        """Pass a stop request on to all of them."""
        word = "true" if stop.checkpoint else "false"
        message = f'{{"kind": "stop", "reason": "{stop.reason}", "checkpoint": {word}}}\n'
        for member in self._members:
            # One that is gone already has an outcome that tells how.
            with contextlib.suppress(OSError):
                member.connection.sendall(message.encode())

    def mind_failures(self, stop: StopRequested | None) -> None:
        """When one of them failed the others stop, and are killed if they do not.

        Args:
            stop: what was asked of all of them; a rank that ends as asked has not failed.
        """
        fine = {0, None} | ({int(stop.code), int(ExitCode.PEER_FAILED)} if stop is not None else set())
        statuses = [each.status for each in self._members]
        if None not in statuses or all(status in fine for status in statuses):
            return
        if self._peers_end == float("inf"):
            self._peers_end = time.monotonic() + PEER_SECONDS
            self.tell(StopRequested("peer"))
        if time.monotonic() > self._peers_end:
            self.kill()

    def kill(self) -> None:
        """Kill them all."""
        for member in self._members:
            member.kill()

    def close(self) -> None:
        """End whatever is left."""
        for member in self._members:
            member.close()
        self._selector.close()

    def outcome(self, stop: StopRequested | None, *, phase: str, step: int | None) -> dict[str, Any]:
        """How they ended, as one: the earliest end that no other rank caused, or rank 0's when all is well."""
        ends = [self._end_of(each, stop, phase, step) for each in self._members]
        codes = {int(outcome["exit_code"]) for _, outcome in ends}
        if codes == {0}:
            return ends[0][1]
        caused = [end for end in ends if end[1]["exit_code"] not in (0, ExitCode.PEER_FAILED)]
        consequences = [end for end in ends if end[1]["exit_code"] == ExitCode.PEER_FAILED]
        _, first = min(caused or consequences, key=lambda end: end[0])
        if first.get("failure") and first["failure"].get("step") is None:
            first["failure"]["step"] = step
        return first

    def _hear(self, member: Member) -> list[dict[str, Any]]:
        piece = _receive(member.connection)
        if not piece:
            self._hush(member)
            return []
        *lines, member.pieces = (member.pieces + piece).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if message.get("kind") == "outcome":  # of a rank whose disk takes no file any more
                member.told = {name: value for name, value in message.items() if name != "kind"}
        return messages if member.number == 0 else []

    def _hush(self, member: Member) -> None:
        member.silent = True
        self._selector.unregister(member.connection)

    def _await_one(self, seconds: float) -> None:
        living = [each.process for each in self._members if each.status is None and each.process is not None]
        if living:
            with contextlib.suppress(subprocess.TimeoutExpired):
                living[0].wait(timeout=seconds)

    def _end_of(
        self, member: Member, stop: StopRequested | None, phase: str, step: int | None
    ) -> tuple[int, dict[str, Any]]:
        """When and how a rank ended: what it left, or what its silence means."""
        if member.outcome.exists():
            return member.outcome.stat().st_mtime_ns, read_json(member.outcome)
        if member.told is not None:
            return member.ended_at, member.told
        if member.killed and self._peers_end < float("inf"):
            error: BaseException = PeerFailed(f"rank {member.number} had to be killed: another one ended first")
            return member.ended_at, _outcome_of(error, phase, step)
        if stop is not None and member.killed:
            return member.ended_at, _outcome_of(stop, phase, step)
        if stop is not None and len(self._members) == 1:
            return member.ended_at, _outcome_of(stop, phase, step)
        status = member.status
        assert status is not None
        how = f"was killed by {_signal_text(-status)}" if status < 0 else f"ended with status {status}"
        who = "the training process" if len(self._members) == 1 else f"rank {member.number}"
        outcome = _outcome_of(TrainerError(f"{who} {how}"), phase, step)
        outcome["failure"]["traceback"] = "\n".join(_tail(member.log, LOG_TAIL_LINES))
        return member.ended_at, outcome


def rank_environment(number: int, count: int, port: int) -> dict[str, str]:
    """A rank's environment: no hub access, output at once, and with several ranks torch's own variables.

    OpenMP threads that wait spin for some microseconds only, unless somebody asks for more: beside loader
    workers or a neighbour on the same processors, two spinning threads were seen to compute at a fifth of
    the speed.
    """
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    inherited = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "20000",
        **without_secret_variables(os.environ),
    }
    if count == 1:
        return {**inherited, **quiet}
    threads = str(max(1, processors().count // count))
    # One machine: gloo would otherwise ask what the host's name leads to, which in a container may be nothing.
    wishes = {"OMP_NUM_THREADS": threads, "GLOO_SOCKET_IFNAME": "lo"}
    place = {
        "RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": HOST, "MASTER_PORT": str(port),
    }  # fmt: skip
    return {**wishes, **inherited, **quiet, **place}


def _outcome_of(error: BaseException, phase: str, step: int | None) -> dict[str, Any]:
    failure = describe_failure(error, phase=phase, step=step)
    return outcome_document(ExitCode(failure["code"]), failure=failure)


def _receive(connection: socket.socket) -> bytes:
    """What a rank said, empty at its end; one killed with a request unread resets the connection."""
    try:
        return connection.recv(65536)
    except ConnectionError:
        return b""


def _signal_text(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _tail(path: Path, lines: int) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []
