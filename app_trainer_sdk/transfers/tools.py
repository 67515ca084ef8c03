"""Owns what a download is made with: connections, patience, time and luck. It must not know what is fetched."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from app_trainer_sdk.transfers.addresses import Guard
from app_trainer_sdk.transfers.pauses import Clock, RealClock
from app_trainer_sdk.transfers.wanted import Patience
from app_trainer_sdk.transfers.web import Web


@dataclass(frozen=True)
class Tools:
    """Arguments everywhere, so that tests need neither time nor luck.

    Attributes:
        web: connections.
        patience: how much at once, and how long trouble is borne.
        clock: seconds and pauses.
        chance: jitter.
    """

    web: Web
    patience: Patience = field(default_factory=Patience)
    clock: Clock = field(default_factory=RealClock)
    chance: random.Random = field(default_factory=random.Random)


@contextlib.contextmanager
def open_tools() -> Iterator[Tools]:
    """Connections as the environment says, closed afterwards: a run of days keeps none of them."""
    tools = Tools(Web(Guard.from_environment()))
    try:
        yield tools
    finally:
        tools.web.close()
