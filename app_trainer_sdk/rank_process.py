"""Owns one rank's process: its session, its line, its log, its environment, and how it ended.

Each rank leads a session of its own and has a line of its own. This file must not know of other ranks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app_trainer_sdk.descendants import KILL_SECONDS
from app_trainer_sdk.limits import processors
from app_trainer_sdk.redaction import without_secret_variables

#: Of a rank that died without a word its log is searched for what the driver or a library said last.
LOG_TAIL_BYTES = 64 << 10
HOST = "127.0.0.1"


class RankProcess:
    """One rank's process, with its end of the line."""

    def __init__(self, number: int, folder: Path) -> None:
        self.number = number
        self.outcome = folder / f"outcome-{number}.json"
        self.log = folder / "logs" / f"rank-{number}.log"
        self.connection, self.theirs = socket.socketpair()
        self.pieces = b""
        self.silent = False
        self.killed = False
        self.listens = False  # whether it has said anything, so that signals mean to it what they should
        self.moved_at = 0.0  # by the clock of whoever watches it
        self.ended_at = 0
        self.log_begin = self.stacks_begin = 0
        self.told: dict[str, Any] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self, command: list[str], environment: Mapping[str, str], descriptors: list[int]) -> None:
        """Start the process in a session of its own; its output goes to its log."""
        self.log.parent.mkdir(exist_ok=True)
        self.outcome.unlink(missing_ok=True)  # of an earlier start of the same attempt
        with self.log.open("ab") as output:
            self.log_begin = output.tell()
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

    @property
    def failed(self) -> bool:
        """Whether it ended otherwise than by finishing its work; one that leaves no outcome did not finish."""
        finished = self.told is not None or self.outcome.exists()
        return self.status is not None and (self.status != 0 or not finished)

    def kill(self) -> None:
        """Kill what is left of the session: loader workers must not outlive their rank."""
        if self.process is None:
            return
        self.killed = self.killed or self.status is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Take its status and end the line. It was killed; one that the kernel cannot end is left to it."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=KILL_SECONDS)
        self.connection.close()
        self.theirs.close()

    def said_last(self) -> str:
        """The end of what it wrote to its log in this start."""
        return self.said_since(max(self.log_begin, self.log_size() - LOG_TAIL_BYTES))

    def said_since(self, place: int) -> str:
        """What it wrote to its log from a place on."""
        try:
            with self.log.open("rb") as file:
                file.seek(place)
                return file.read(LOG_TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""

    def log_size(self) -> int:
        """Bytes in its log."""
        return self.log.stat().st_size if self.log.exists() else 0


def rank_environment(number: int, count: int, port: int, *, node: int = 0, nodes: int = 1) -> dict[str, str]:
    """A rank's environment: no hub access, output at once, and with several ranks torch's own variables.

    With several nodes where they meet stands in the environment already.

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
    if count == nodes == 1:
        return {**inherited, **quiet}
    wishes = {"OMP_NUM_THREADS": str(max(1, processors().count // count))}
    place = {
        "RANK": str(node * count + number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(nodes * count),
        "LOCAL_WORLD_SIZE": str(count),
    }  # fmt: skip
    if nodes == 1:
        # Gloo would otherwise ask what the host's name leads to, which in a container may be nothing.
        wishes["GLOO_SOCKET_IFNAME"] = "lo"
        place |= {"MASTER_ADDR": HOST, "MASTER_PORT": str(port)}
    return {**wishes, **inherited, **quiet, **place}
