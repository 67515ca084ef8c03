"""Owns how hard uploads try: connections, pace, patience. It must not know what is sent or to whom."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from typing import final

from app_trainer_sdk.transfers.outgoing import PART_BYTES
from app_trainer_sdk.transfers.pauses import LOOK_SECONDS, Clock, RealClock
from app_trainer_sdk.transfers.web import Web


@dataclass(frozen=True)
class Effort:
    """How much is done at once, and how long trouble is borne.

    Attributes:
        connections: parts at a time.
        part_bytes: least size of a part.
        give_up_seconds: without anything moving.
        most_failures: in a row.
        restarts: how often a receiver may refuse what it got.
        slow_seconds: over which the least rate is measured.
        least_rate: bytes a second below which a connection counts as dead.
    """

    connections: int = 4
    part_bytes: int = PART_BYTES
    give_up_seconds: float = 900.0
    most_failures: int = 1000
    restarts: int = 3
    slow_seconds: float = 30.0
    least_rate: float = 16 * 1024.0


@final
class Throttle:
    """Lets so many bytes a second pass, over all threads that share it.

    Args:
        rate: bytes a second, 0 for as many as there are.
    """

    def __init__(self, rate: float = 0.0) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, size: int, clock: Clock, stop: threading.Event) -> float:
        """Wait until ``size`` more bytes may go, or somebody wants to stop, or the rate is lifted.

        Returns:
            seconds waited.
        """
        if not self.rate:
            return 0.0
        began = clock.now()
        with self._lock:
            at = max(self._free_at, began)
            self._free_at = at + size / self.rate
        while self.rate and (left := at - clock.now()) > 0 and not stop.is_set():
            clock.wait(stop, min(left, LOOK_SECONDS))
        return clock.now() - began

    def lift(self) -> None:
        """From now on as fast as can be."""
        self.rate = 0.0


@dataclass(frozen=True)
class UploadTools:
    """What an upload is made with; arguments, so that tests need neither time nor luck.

    Attributes:
        web: connections to the store.
        effort: how much at once, and how long trouble is borne.
        throttle: how fast; one for all files that share it.
        clock: seconds and pauses.
        chance: jitter.
    """

    web: Web
    effort: Effort = field(default_factory=Effort)
    throttle: Throttle = field(default_factory=Throttle)
    clock: Clock = field(default_factory=RealClock)
    chance: random.Random = field(default_factory=random.Random)
