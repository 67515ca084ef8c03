"""A file in the making that a test has to itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app_trainer_sdk.transfers.claims import claim
from app_trainer_sdk.transfers.partial import Partial
from app_trainer_sdk.transfers.pauses import RealClock


def take(folder: Path, *, ready: bool = False, looks: int = 0, waiting: Any = lambda: None) -> Partial | None:
    def check() -> None:
        nonlocal looks
        looks -= 1
        if looks < 0:
            raise InterruptedError

    return claim(folder, "key", ready=lambda: ready, check=check, clock=RealClock(), waiting=waiting)


def owned(folder: Path) -> Partial:
    found = take(folder, looks=3)
    assert found is not None
    return found
