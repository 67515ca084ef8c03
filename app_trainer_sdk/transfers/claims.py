"""Owns who may work on a file in the making: one process that lives.

Whoever does has renamed ``partial/<key>`` to ``<key>.<owner>``: a rename has one winner on every file system,
which locks do not promise, and a heartbeat tells whether the owner lives. This file must not know what is in
the folder.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from app_trainer_sdk.owner import HEARTBEAT, is_owned, new_token
from app_trainer_sdk.transfers.partial import Partial
from app_trainer_sdk.transfers.pauses import Clock

LOOK_SECONDS = 0.25


def claim(
    partials: Path, key: str, *, ready: Callable[[], bool], check: Callable[[], None], clock: Clock,
    waiting: Callable[[], None] = lambda: None,
) -> Partial | None:  # fmt: skip
    """Own the file ``key``, waiting while another process that lives does.

    Args:
        partials: the folder of all files in the making.
        key: names the file: its digest where that is known.
        ready: whether the finished file is there; then nothing is claimed.
        check: raises when somebody wants to stop.
        clock: pauses.
        waiting: told each time that another process is waited for.

    Returns:
        the file, or None as soon as it is ready.
    """
    partials.mkdir(parents=True, exist_ok=True)
    free, never = partials / key, threading.Event()
    while not ready():
        check()
        owners = sorted(partials.glob(f"{key}.*"))
        dead = [each for each in owners if not is_owned(each)]
        if len(owners) > len(dead):
            waiting()
            clock.wait(never, LOOK_SECONDS)
            continue
        mine = partials / f"{key}.{new_token()}"
        with contextlib.suppress(OSError):
            if not dead:
                free.mkdir(exist_ok=True)
            source = dead[0] if dead else free
            (source / HEARTBEAT).touch()
            source.rename(mine)
            return Partial(mine, free)
        check_writable(partials)
    return None


def check_writable(folder: Path) -> None:
    """Raise what keeps ``folder`` from being written: what cannot be claimed must not be tried for ever."""
    probe = folder / f".{new_token()}"
    probe.touch()
    probe.unlink(missing_ok=True)
