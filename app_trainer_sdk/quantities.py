"""Owns how amounts are said to people: bytes, memory, seconds. It must not know what they are amounts of."""

from __future__ import annotations

MIB, GIB = 1 << 20, 1 << 30


def size_text(size: float) -> str:
    """``512 B``, ``3.4 MB``, ``12.0 GB``: decimal units, as networks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def memory_text(size: int) -> str:
    """``3 bytes``, ``2.0 KiB``, ``60.0 MiB``: how much of a process's memory."""
    if abs(size) >= MIB:
        return f"{size / MIB:,.1f} MiB"
    return f"{size / 1024:,.1f} KiB" if abs(size) >= 1024 else f"{size} bytes"


def gib_text(size: float) -> str:
    """``21.3 GiB``, as cards are sold."""
    return f"{size / GIB:.1f} GiB"


def seconds_text(seconds: float) -> str:
    """``7 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
