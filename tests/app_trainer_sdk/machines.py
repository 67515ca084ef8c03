"""Fake files of a machine: ``/proc`` and its control groups, of either version of the kernel's interface."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

GIB = 1 << 30
HOST = {"MemTotal": 1000 * GIB, "MemAvailable": 900 * GIB}


class Machine:
    """Fake files: ``/proc`` and one mount of control groups."""

    def __init__(self, folder: Path, *, version: int = 2, group: str = "/", root: str = "/") -> None:
        self.proc, self.mount, self.version = folder / "proc", folder / "cgroup", version
        own = self.proc / "self"
        own.mkdir(parents=True)
        self.mount.mkdir()
        kilobytes = "".join(f"{name}: {size // 1024} kB\n" for name, size in HOST.items())
        (self.proc / "meminfo").write_text(kilobytes)
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,memory,cpu,cpuacct"
        (own / "mountinfo").write_text(
            f"22 1 8:1 / / rw - ext4 /dev/root rw\n31 23 0:28 {root} {self.mount} rw,relatime - {kind}\n"
        )
        line = f"0::{group}\n" if version == 2 else f"4:memory:{group}\n3:cpu,cpuacct:{group}\n0::/other\n"
        (own / "cgroup").write_text(line)

    def put(self, group: str, files: Mapping[str, object]) -> None:
        folder = self.mount / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in files.items():
            beside = folder / f"{name}.new"  # the kernel's are never half written
            beside.write_text(f"{value}\n")
            beside.rename(folder / name)

    def memory(self, group: str, limit: object, used: float, inactive: float, active: float = 0.0) -> None:
        names = ("memory.max", "memory.current", "inactive_file", "active_file")
        if self.version == 1:
            names = (
                "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", "total_active_file"
            )  # fmt: skip
        stat = f"anon 1\n{names[2]} {int(inactive * GIB)}\n{names[3]} {int(active * GIB)}"
        self.put(group, {names[0]: limit, names[1]: int(used * GIB), "memory.stat": stat})

    def kills(self, group: str, count: int) -> None:
        """How many processes of a group were ended for want of memory."""
        name = "memory.events" if self.version == 2 else "memory.oom_control"
        self.put(group, {name: f"low 0\noom 1\noom_kill {count}"})
