"""Owns whether the disk has room, asked before the first byte comes. It must not know what comes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from app_trainer_sdk.errors import DiskFull
from app_trainer_sdk.paths import PREFIX
from app_trainer_sdk.quantities import size_text

#: Kept free beyond what is counted: file systems slow down and fail before the last byte.
RESERVE_SHARE = 0.02


def free_bytes(folder: Path) -> int:
    """Bytes that this user may still write where ``folder`` is, or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def same_disk(one: Path, other: Path) -> bool:
    """Whether two folders that are there share their space."""
    return one.stat().st_dev == other.stat().st_dev


def check_space(
    folder: Path, missing: int, *, reserve: int = 0, free: Callable[[Path], int] = free_bytes, setting: str = ""
) -> None:
    """Refuse to begin what would not fit.

    Args:
        folder: where bytes will be written.
        missing: bytes that are still to come.
        reserve: bytes that others need there, such as checkpoints.
        free: tells the bytes left.
        setting: where another folder could be named.

    Raises:
        DiskFull: exit code 73, within a second and with nothing fetched.
    """
    needed = missing + reserve + int(missing * RESERVE_SHARE)
    found = free(folder)
    if missing and found < needed:
        parts = f"{size_text(missing)} to come, {size_text(reserve)} in reserve, 2 %"
        raise DiskFull(
            f"{size_text(found)} free in {folder}", expected=f"{size_text(needed)} ({parts})",
            setting=setting or f"{PREFIX}CACHE_DIR, or make room",
        )  # fmt: skip
