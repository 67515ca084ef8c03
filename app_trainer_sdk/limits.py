"""Owns what the container may use of its machine: memory and processors, by control groups and affinity.

Torch-free. Limits of every group around this process count, in version 1 and 2 of the kernel's interface, with
the mount as this process sees it. Files that are not there mean no limit, and the answer says so. This file
must not know what the memory or the processors are for.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app_trainer_sdk.quantities import MIB

PROC = Path("/proc")
SHARED = Path("/dev/shm")  # noqa: S108 - looked at, never written to


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host that this process may use.

    Attributes:
        limit_bytes: the smallest limit around it, or all of the host's memory.
        usable_bytes: what is left of it, file cache that can be dropped counted as free.
        why: where the numbers come from.
    """

    limit_bytes: int
    usable_bytes: int
    why: str


@dataclass(frozen=True)
class Processors:
    """Processors that this process may use, and why that many."""

    count: int
    why: str


@dataclass(frozen=True)
class _Version:
    """Where one version of the interface keeps things; names of files by what they say."""

    filesystem: str
    limit: str
    usage: str
    inactive: str
    active: str
    kills: str


_V1 = _Version(
    "cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file",
    "memory.oom_control",
)  # fmt: skip
_V2 = _Version(
    "cgroup2", "memory.max", "memory.current", "inactive_file", "active_file", "memory.events"
)  # fmt: skip


def host_memory(proc: Path = PROC) -> HostMemory:
    """Memory within the smallest limit of this process's control group and those around it.

    What is usable is the limit less the working set, that is usage less file cache that can be dropped; never
    more than the host has free.

    Args:
        proc: the process filesystem; another one in tests.
    """
    host = _meminfo(proc)
    total, free = host.get("MemTotal", 0), host.get("MemAvailable", host.get("MemFree", 0))
    found = [
        (limit, _working_set(folder, version), folder)
        for folder, version in _groups(proc, "memory")
        if (limit := _number(folder / version.limit)) is not None and 0 < limit < total
    ]
    if not found:
        is_there = any(True for _ in _groups(proc, "memory"))
        why = "no limit on the container's memory" if is_there else "no control group for memory can be read"
        return HostMemory(total, free, f"{why}: the host's {total // MIB:,} MiB, {free // MIB:,} MiB free")
    limit, _, where = min(found, key=lambda each: each[0])
    left = min(max(0, each_limit - used) for each_limit, used, _ in found)
    usable = min(left, free)
    by = "the limits of the container's control groups" if left <= free else "what the host has free"
    why = f"limit {limit // MIB:,} MiB in {where}; {usable // MIB:,} MiB left by {by}"
    return HostMemory(limit, usable, why)


class MemoryWatch:
    """The memory of the container while it works: how full it is, and whether the kernel killed for it.

    Where the groups are is looked up once; asking again reads a few small files.

    Args:
        proc: the process filesystem; another one in tests.
    """

    def __init__(self, proc: Path = PROC) -> None:
        total = _meminfo(proc).get("MemTotal", 0)
        self._groups = list(_groups(proc, "memory"))
        self._limited = [
            (folder, version, limit)
            for folder, version in self._groups
            if (limit := _number(folder / version.limit)) is not None and 0 < limit < total
        ]

    def fullest(self) -> tuple[int, int]:
        """Bytes that cannot be dropped, and the limit, of the group that is nearest to its limit; else zeros.

        File cache does not count, not even what was read twice: the kernel drops all of it before it kills.
        """
        found = [
            (_held(folder, version.usage, version.inactive, version.active), limit)
            for folder, version, limit in self._limited
        ]
        return max(found, key=lambda each: each[0] / each[1], default=(0, 0))

    def kills(self) -> int:
        """Processes of this group that the kernel's out-of-memory killer has ended so far."""
        innermost = {version: folder for folder, version in reversed(self._groups)}
        return sum(_named(folder / version.kills, "oom_kill") for version, folder in innermost.items())


def processors(*, affinity: int | None = None, proc: Path = PROC) -> Processors:
    """Processors by affinity and by the smallest quota of this process's control groups, at least 1.

    Args:
        affinity: processors this process may be scheduled on; asked of the kernel when not given.
        proc: the process filesystem; another one in tests.
    """
    count = len(os.sched_getaffinity(0)) if affinity is None else affinity
    quotas = [quota for quota in (_quota(folder, version) for folder, version in _groups(proc, "cpu")) if quota]
    if quotas and (least := min(quotas, key=lambda quota: quota[0] / quota[1])):
        allowed = max(1, math.ceil(least[0] / least[1]))
        if allowed < count:
            return Processors(allowed, f"a quota of {least[0]}/{least[1]} µs, of {count} processors")
    return Processors(max(1, count), f"{count} processors by affinity, and no smaller quota")


def private_memory(proc: Path = PROC) -> int:
    """Bytes that only this process holds: of a forked one, what is not its parent's any more; 0 if not told."""
    total = 0
    for line in _lines(proc / "self" / "smaps_rollup"):
        name, _, value = line.partition(":")
        if name in ("Private_Clean", "Private_Dirty"):
            total += int(value.split()[0]) * 1024
    return total


def shared_memory(folder: Path = SHARED) -> int:
    """Bytes free for what processes share, such as loader workers' batches; 0 without such a folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def _groups(proc: Path, controller: str) -> Iterator[tuple[Path, _Version]]:
    """Folders of this process's control group and of those around it, innermost first."""
    paths = _own_paths(proc, controller)
    for version, mount, root in _mounts(proc, controller):
        path = paths.get(version.filesystem)
        if path is None:
            continue
        # A container sees its own group as the mount's root, whatever the path says of the host's tree.
        inside = path.removeprefix(root.rstrip("/")).strip("/") if path.startswith(root) else ""
        folder = mount / inside
        if not folder.is_dir():
            folder = mount
        while True:
            yield folder, version
            if folder == mount:
                break
            folder = folder.parent


def _own_paths(proc: Path, controller: str) -> dict[str, str]:
    """The process's group in each version: lines ``number:controllers:path``."""
    paths: dict[str, str] = {}
    for line in _lines(proc / "self" / "cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            paths[_V2.filesystem] = path
        elif controller in controllers.split(","):
            paths[_V1.filesystem] = path
    return paths


def _mounts(proc: Path, controller: str) -> Iterator[tuple[_Version, Path, str]]:
    """Where each version is mounted, and which group the mount's root is."""
    for line in _lines(proc / "self" / "mountinfo"):
        fields, _, after = line.partition(" - ")
        root, mount = fields.split()[3:5]
        kind, *_, options = after.split()
        if kind == _V2.filesystem:
            yield _V2, Path(mount), root
        elif kind == _V1.filesystem and controller in options.split(","):
            yield _V1, Path(mount), root


def _quota(folder: Path, version: _Version) -> tuple[int, int] | None:
    """Microseconds of processor time in each period."""
    if version is _V2:
        parts: Sequence[str] = (_lines(folder / "cpu.max") or [""])[0].split()
        if len(parts) == 2 and parts[0].isdecimal() and parts[1].isdecimal() and int(parts[1]):
            return int(parts[0]), int(parts[1])
        return None
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return (quota, period) if quota and period and quota > 0 else None


def _working_set(folder: Path, version: _Version) -> int:
    return _held(folder, version.usage, version.inactive)


def _held(folder: Path, usage: str, *droppable: str) -> int:
    """Bytes a group uses, less those of its statistics that can be dropped."""
    spared = sum(_named(folder / "memory.stat", name) for name in droppable)
    return max(0, (_number(folder / usage) or 0) - spared)


def _named(path: Path, name: str) -> int:
    """The number in a file's line ``name number``, 0 without one."""
    for line in _lines(path):
        first, _, value = line.partition(" ")
        if first == name and value.strip().isdecimal():
            return int(value)
    return 0


def _meminfo(proc: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in _lines(proc / "meminfo"):
        name, _, value = line.partition(":")
        if value.split() and value.split()[0].isdecimal():
            found[name] = int(value.split()[0]) * 1024
    return found


def _number(path: Path) -> int | None:
    """A file's number; None for ``max`` and for a file that is not there."""
    text = (_lines(path) or [""])[0].strip()
    return int(text) if text.lstrip("-").isdecimal() else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
