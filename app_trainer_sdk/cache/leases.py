"""Owns who uses what of the cache now: ``uses/<owner>.json``, alive as long as the process that wrote it.

A process that will use something takes a lease *before* it looks whether it is there. Whoever removes puts it
aside and reads the leases again *after* that, so one of the two always sees the other. This file must not
know what the names stand for.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import final

from app_trainer_sdk.files import read_json, remove_tree, write_json
from app_trainer_sdk.owner import BEAT_SECONDS, is_alive, new_token

#: A lease of another machine or container holds so long without a heartbeat: a wrong guess costs a running job.
LEASE_SECONDS = 600.0


@final
class Leases:
    """The leases of the cache below one folder."""

    def __init__(self, root: Path) -> None:
        self._uses = root / "uses"

    def take(self, names: Iterable[str]) -> None:
        """Keep what has these names from being removed until this process ends."""
        held = sorted(set(names))
        if not held:
            return
        path = self._uses / f"{new_token()}.json"
        write_json(path, {"files": held})
        threading.Thread(target=_beat, args=(path,), name="cache-lease", daemon=True).start()

    def taken(self) -> set[str]:
        """Names that a living process holds; leases of the dead are cleared away."""
        held: set[str] = set()
        for path in self._uses.glob("*.json"):
            if not is_alive(path.stem, path, expires=LEASE_SECONDS):
                path.unlink(missing_ok=True)
                continue
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                held |= set(read_json(path)["files"])
        return held


def aside(path: Path) -> Path:
    """A name beside for what goes: hidden, and nobody else's."""
    return path.with_name(f".{path.name}.{new_token()}.tmp")


def remove_unless(is_held: Callable[[], bool], path: Path) -> bool:
    """Remove a file or folder unless somebody holds it; whether it is gone.

    What is held is not touched: it may be opened at this moment. Anything else is put aside and asked for again
    after that: who took a lease meanwhile, before they looked, keeps it, or has made it anew.
    """
    if is_held():
        return False
    gone = aside(path)
    try:
        path.rename(gone)
    except FileNotFoundError:
        return True
    if is_held() and not path.exists():  # else its holder has made it anew
        with contextlib.suppress(OSError):  # at this very moment
            gone.rename(path)
            return False
    _delete(gone)
    return not path.exists()


def _delete(path: Path) -> None:
    if path.is_dir():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)


def _beat(path: Path) -> None:
    """Keep a lease alive until the process ends; threads that are daemons end with it."""
    never = threading.Event()
    while not never.wait(BEAT_SECONDS):
        try:
            os.utime(path)
        except FileNotFoundError:
            return
        except OSError:
            continue
