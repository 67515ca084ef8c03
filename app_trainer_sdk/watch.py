"""Owns what is watched while ranks work: memory that runs out, and ranks that do not move any more.

Torch-free. It must not know how ranks are begun or how an end is told.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

from app_trainer_sdk.errors import ExitCode, GpuFault, HostOutOfMemory, InternalError, TrainerError
from app_trainer_sdk.limits import MemoryWatch
from app_trainer_sdk.outcome import describe_failure, outcome_document
from app_trainer_sdk.paths import number_from_environment
from app_trainer_sdk.quantities import MIB

STALL_SECONDS = 900.0
#: At its limit the kernel kills the whole container, this process included: the ranks go before that.
FULL_SHARE = 0.97
#: From the wish for stacks until they are in the log.
DUMP_SECONDS = 1.0


class Watched(Protocol):
    """The ranks, as far as they are watched."""

    def silence(self) -> float:
        """Seconds since the quietest one moved."""
        ...

    def dump_stacks(self) -> None:
        """Make each write its stacks to its log."""
        ...

    def wait_in_collectives(self) -> bool:
        """Whether the stacks say that all wait for each other."""
        ...


class Watch:
    """Looks at the ranks and at memory.

    Args:
        ranks: who is looked at.
        memory: the container's memory.
        clock: seconds, monotonic.

    Attributes:
        stalled: since when nothing has moved, as far as it was told; None while all is well.
    """

    def __init__(
        self, ranks: Watched, memory: MemoryWatch, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ranks = ranks
        self._memory = memory
        self._kills = memory.kills()
        self._clock = clock
        self._limit = number_from_environment("STALL_SECONDS", STALL_SECONDS, zero=False)
        self._dumped_at: float | None = None
        self._over = False
        self.stalled: float | None = None

    def look(self) -> Literal["", "stalled"] | TrainerError:
        """What is to be told or done now: nothing, that nothing moves, or the verdict that ends the ranks.

        A stall is told once the stacks are in the log. As long again without a movement, and it is the end.
        """
        if self._over:  # the verdict is said once
            return ""
        held, limit = self._memory.fullest()
        if limit and held > FULL_SHARE * limit:
            self._over = True
            return HostOutOfMemory(
                f"{held // MIB:,} of {limit // MIB:,} MiB of the container's memory are in use, and the kernel "
                "would end all of it at the limit",
                expected=f"at most {FULL_SHARE:.0%}", setting="the container's memory, or dataloader_workers",
            )  # fmt: skip
        silence = self._ranks.silence()
        if silence < self._limit:
            self._dumped_at = self.stalled = None
            return ""
        if self._dumped_at is None:
            self._ranks.dump_stacks()
            self._dumped_at = self._clock()
        elif self.stalled is None and self._clock() - self._dumped_at >= DUMP_SECONDS:
            self.stalled = silence
            return "stalled"
        elif self.stalled is not None and silence >= 2 * self._limit:
            return self._verdict(silence)
        return ""

    def explained(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """An end without a reason, beside a kill for memory: memory is the reason."""
        kills = self._memory.kills() - self._kills
        if kills <= 0 or outcome["exit_code"] != ExitCode.INTERNAL_ERROR:
            return outcome
        before = outcome["failure"]
        error = HostOutOfMemory(
            f"the kernel ended {kills} of the container's processes for want of memory; {before['message']}",
            setting="the container's memory, or dataloader_workers",
        )
        failure = describe_failure(error, phase=before["phase"], step=before["step"])
        kept = {**outcome, **outcome_document(error.code, failure=failure)}
        kept["failure"]["traceback"] = before.get("traceback", "")
        return kept

    def _verdict(self, silence: float) -> TrainerError:
        self._over = True
        told = f"nothing moved for {silence:.0f} s"
        where = "the stacks of all threads are in the rank's log"
        if self._ranks.wait_in_collectives():
            return GpuFault(f"{told}, and every rank waits for the others in a collective; {where}")
        return InternalError(f"{told}; {where}", setting="APP_TRAINER_STALL_SECONDS if it only takes long")
