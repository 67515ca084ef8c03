"""Owns who a process is, in a file name, and whether the one that a name speaks of is still alive.

For claims and leases on file systems without working locks. It must not know what is claimed.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path

#: What the owner of a folder touches in it.
HEARTBEAT = "heartbeat"
BEAT_SECONDS = 2.0
#: A claim whose heartbeat is older belongs to nobody, when its owner cannot be looked up here: after a crash in
#: another container the next start waits so long at most. Network file systems show a beat up to about 3 s
#: late, and a wrong guess costs no bytes: the owner notices, and what both write is verified.
EXPIRES_SECONDS = 10.0


def boot_id() -> str:
    """What names this machine since it was started; empty where nothing tells."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def new_token() -> str:
    """A name for this process as an owner, unique for each claim: ``boot-namespace-pid-start-random``."""
    pid = os.getpid()
    return "-".join([_machine(), _namespace(), str(pid), _started(pid), secrets.token_hex(4)])


def is_owned(folder: Path) -> bool:
    """Whether a folder has a living owner: it was named ``<what>.<token>`` by who took it."""
    token = folder.name.partition(".")[2]
    return bool(token) and is_alive(token, folder / HEARTBEAT)


def is_alive(token: str, heartbeat: Path, *, expires: float = EXPIRES_SECONDS) -> bool:
    """Whether the owner that ``token`` names still works.

    In the same PID namespace the process table knows. Elsewhere the heartbeat's age does, measured by the
    clock of the file system that both write to, since two machines' clocks differ.
    """
    parts = token.split("-")
    if len(parts) == 5 and parts[0] == _machine() and parts[1] == _namespace() and parts[1]:
        return parts[3] == _started(int(parts[2])) if parts[2].isdecimal() else False
    try:
        return _file_system_now(heartbeat.parent.parent) - heartbeat.stat().st_mtime < expires
    except OSError:
        return False


def _machine() -> str:
    return boot_id().replace("-", "")[:12]


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").stat().st_ino)
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process started, in ticks since the machine did; a number that is used again has another."""
    try:
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[19]
        )
    except (OSError, IndexError):
        return ""


def _file_system_now(folder: Path) -> float:
    probe = folder / f".now-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        probe.unlink(missing_ok=True)
