"""Owns the processes that train as one: begun, heard, told to stop, ended, and what their ends mean together.

Torch-free; ``rank_process.py`` owns each of them. What the supervisor begins for
itself stays in the supervisor's session: so everything below it in another session came from a rank, and ends
with the ranks. Of several ranks only rank 0 is heard. This file must not know events, reports or what a rank
says.
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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk.descendants import bury_orphans, end_below, processes_below
from app_trainer_sdk.errors import ExitCode, GpuFault, PeerFailed, StopRequested, TrainerError
from app_trainer_sdk.files import read_json
from app_trainer_sdk.outcome import describe_failure, outcome_document, says_gpu_fault
from app_trainer_sdk.rank_process import HOST, RankProcess, rank_environment
from app_trainer_sdk.start import START

LOG_TAIL_LINES = 12
#: Makes a rank write the stacks of all its threads to its log, even while one of them holds the interpreter.
STACKS_SIGNAL = signal.SIGUSR1
#: How long the ranks are listened to at a time.
LISTEN_SECONDS = 0.1
#: From "another rank failed" to the kill: enough to leave a save behind, too short to look like a hang.
PEER_SECONDS = 5.0
#: Ends of a rank that was made to go: a platform that stops a job may signal all of its processes.
FROM_OUTSIDE = (-signal.SIGTERM, -signal.SIGKILL, int(ExitCode.PEER_FAILED))
PROGRAM = (sys.executable, "-m", "app_trainer_sdk.training.rank")


class Ranks:
    """The training processes of one attempt, on this node.

    Args:
        folder: the attempt's folder, with its ``start.json``.
        count: how many processes train here.
        program: what each of them runs.
        node, nodes: which node this is, and of how many; with several they meet where the environment says.
        clock: seconds, monotonic.
    """

    def __init__(
        self, folder: Path, count: int = 1, *, program: Sequence[str] = PROGRAM, node: int = 0, nodes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._clock = clock
        self._program = program
        self._node, self._nodes = node, nodes
        self._members = [RankProcess(node * count + number, folder) for number in range(count)]
        self._selector = selectors.DefaultSelector()
        self._peers_end = float("inf")
        self._verdict: TrainerError | None = None
        self._stale: dict[Path, int] = {}
        self._others: set[int] = set()

    def begin(self) -> None:
        """Start all of them, in the main thread: a rank is signalled when the thread that began it ends."""
        count = len(self._members)
        self._stale = {path: path.stat().st_mtime_ns for path in self._outcomes_elsewhere()}
        self._others = {each.pid for each in processes_below(os.getpid())}
        with contextlib.ExitStack() as stack:
            # Bound here and handed to rank 0, so that nobody can take the port in between.
            own = count > 1 and self._nodes == 1
            meeting = stack.enter_context(socket.create_server((HOST, 0))) if own else None
            for local, member in enumerate(self._members):
                descriptors = [member.theirs.fileno()]
                if meeting is not None and member.number == 0:
                    descriptors.append(meeting.fileno())
                words = [str(self._folder / START), *map(str, descriptors)]
                port = meeting.getsockname()[1] if meeting is not None else 0
                environment = rank_environment(local, count, port, node=self._node, nodes=self._nodes)
                self._selector.register(member.connection, selectors.EVENT_READ, member)
                member.begin([*self._program, *words], environment, descriptors)
                member.moved_at = self._clock()

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
        bad = any(each.failed and (each.status == 0 or each.status not in fine) for each in self._members)
        bad = bad or any(outcome["exit_code"] not in fine for _, outcome in self._ends_elsewhere())
        if not bad or all(each.status is not None for each in self._members):
            return
        if self._peers_end == float("inf"):
            self._peers_end = self._clock() + PEER_SECONDS
            self.tell(StopRequested("peer"))
        if self._clock() > self._peers_end:
            self.kill()

    def silence(self) -> float:
        """Seconds since the quietest of those that live said anything, or that it moves."""
        moved = [each.moved_at for each in self._members if each.status is None]
        now = self._clock()
        return now - min(moved, default=now)

    def dump_stacks(self) -> None:
        """Make each write the stacks of all its threads to its log."""
        for member in self._members:
            if member.status is None and member.listens and member.process is not None:
                member.stacks_begin = member.log_size()
                member.process.send_signal(STACKS_SIGNAL)

    def wait_in_collectives(self) -> bool:
        """Whether each that lives, of several, was in a collective when it wrote its stacks."""
        stacks = [each.said_since(each.stacks_begin) for each in self._members if each.status is None]
        return len(self._members) > 1 and all("torch/distributed" in each for each in stacks)

    def give_up(self, verdict: TrainerError) -> None:
        """Kill them all; the end of those that were killed is ``verdict``."""
        self._verdict = verdict
        self.kill()

    def kill(self) -> None:
        """Kill them all, and everything that they began."""
        for member in self._members:
            member.kill()
        self._end_rest()

    def bury_orphans(self) -> None:
        """Take the status of what ranks left behind, when it has ended."""
        bury_orphans({each.process.pid for each in self._members if each.process is not None})

    def close(self) -> None:
        """End whatever is left."""
        self.kill()
        for member in self._members:
            member.close()
        self.bury_orphans()
        self._selector.close()

    def _end_rest(self) -> None:
        end_below(os.getpid(), spared=self._others, session=os.getsid(0))

    def outcome(self, stop: StopRequested | None, *, phase: str, step: int | None) -> dict[str, Any]:
        """How they ended, as one: the earliest end that no other rank caused, or rank 0's when all is well."""
        ends = [self._end_of(each, stop, phase, step) for each in self._members]
        ends += self._ends_elsewhere()
        codes = {int(outcome["exit_code"]) for _, outcome in ends}
        if codes == {0}:
            return ends[0][1]
        caused = [end for end in ends if end[1]["exit_code"] not in (0, ExitCode.PEER_FAILED)]
        if not caused and stop is not None:
            return _outcome_of(stop, phase, step)
        consequences = [end for end in ends if end[1]["exit_code"] == ExitCode.PEER_FAILED]
        _, first = min(caused or consequences, key=lambda end: end[0])
        if first.get("failure") and first["failure"].get("step") is None:
            first["failure"]["step"] = step
        return first

    def _ends_elsewhere(self) -> list[tuple[int, dict[str, Any]]]:
        """Outcomes that ranks of other nodes left in the directory that all share, in this start."""
        found = [
            path for path in self._outcomes_elsewhere() if path.stat().st_mtime_ns != self._stale.get(path)
        ]
        return [(path.stat().st_mtime_ns, read_json(path)) for path in found]

    def _outcomes_elsewhere(self) -> list[Path]:
        here = {each.outcome for each in self._members}
        paths = self._folder.glob("outcome-*.json") if self._nodes > 1 else ()
        return [path for path in paths if path not in here]

    def _hear(self, member: RankProcess) -> list[dict[str, Any]]:
        piece = _receive(member.connection)
        if not piece:
            self._hush(member)
            return []
        member.listens, member.moved_at = True, self._clock()
        *lines, member.pieces = (member.pieces + piece).split(b"\n")
        messages = [json.loads(line) for line in lines]
        for message in messages:
            if message.get("kind") == "outcome":  # of a rank whose disk takes no file any more
                member.told = {name: value for name, value in message.items() if name != "kind"}
        return messages if member.number == 0 else []

    def _hush(self, member: RankProcess) -> None:
        member.silent = True
        self._selector.unregister(member.connection)

    def _await_one(self, seconds: float) -> None:
        living = [each.process for each in self._members if each.status is None and each.process is not None]
        if living:
            with contextlib.suppress(subprocess.TimeoutExpired):
                living[0].wait(timeout=seconds)

    def _end_of(
        self, member: RankProcess, stop: StopRequested | None, phase: str, step: int | None
    ) -> tuple[int, dict[str, Any]]:
        """When and how a rank ended: what it left, or what its silence means."""
        if member.outcome.exists():
            return member.outcome.stat().st_mtime_ns, read_json(member.outcome)
        if member.told is not None:
            return member.ended_at, member.told
        if member.killed and self._verdict is not None:
            return member.ended_at, _outcome_of(self._verdict, phase, step)
        if member.killed and self._peers_end < float("inf"):
            error: BaseException = PeerFailed(f"rank {member.number} had to be killed: another one ended first")
            return member.ended_at, _outcome_of(error, phase, step)
        if stop is not None and (member.killed or member.status in FROM_OUTSIDE):
            return member.ended_at, _outcome_of(stop, phase, step)
        outcome = _outcome_of(self._silent_end(member), phase, step)
        outcome["failure"]["traceback"] = "\n".join(member.said_last().splitlines()[-LOG_TAIL_LINES:])
        return member.ended_at, outcome

    def _silent_end(self, member: RankProcess) -> TrainerError:
        """What it means that a rank ended without a word."""
        status = member.status
        if status is None:
            how = "could not be ended: the kernel waits for a disk or a driver"
        else:
            how = f"was killed by {_signal_text(-status)}" if status < 0 else f"ended with status {status}"
        found = f"{'the training process' if len(self._members) == 1 else f'rank {member.number}'} {how}"
        if status in (-signal.SIGTERM, ExitCode.PEER_FAILED):  # by somebody who ended this rank, not the job
            return PeerFailed(found)
        if says_gpu_fault(member.said_last()):
            return GpuFault(f"{found} after its log told of a fault of the accelerator")
        return TrainerError(found)


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
