"""What the container may use of its machine, from fake files of both versions of control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from machines import GIB, Machine

from app_trainer_sdk.limits import MemoryWatch, host_memory, processors, shared_memory


@pytest.mark.parametrize("version", [1, 2])
def test_a_limit_less_the_working_set(tmp_path: Path, version: int):
    """M1: 8 GiB, of which 7.5 are used and 6 of those are cache that can be dropped: 6.5 GiB are usable."""
    machine = Machine(tmp_path, version=version, group="/box")
    machine.memory("box", 8 * GIB, 7.5, 6)
    found = host_memory(machine.proc)

    assert (found.limit_bytes, found.usable_bytes) == (8 * GIB, int(6.5 * GIB))
    assert "limit 8,192 MiB in" in found.why


@pytest.mark.parametrize("version", [1, 2])
def test_a_parent_with_a_smaller_limit(tmp_path: Path, version: int):
    """M1: the smallest limit of all groups around the process counts, each less its own working set."""
    machine = Machine(tmp_path, version=version, group="/pod/box")
    machine.memory("pod/box", 8 * GIB, 1, 0)
    machine.memory("pod", 4 * GIB, 1.5, 0.5)
    found = host_memory(machine.proc)

    assert (found.limit_bytes, found.usable_bytes) == (4 * GIB, 3 * GIB)


@pytest.mark.parametrize(("version", "unlimited"), [(2, "max"), (1, 9223372036854771712)])
def test_no_limit(tmp_path: Path, version: int, unlimited: object):
    """M1: without a limit the host's values count, and the reason says so."""
    machine = Machine(tmp_path, version=version, group="/box")
    machine.memory("box", unlimited, 7, 6)
    found = host_memory(machine.proc)

    assert (found.limit_bytes, found.usable_bytes) == (1000 * GIB, 900 * GIB)
    assert found.why.startswith("no limit on the container's memory: the host's 1,024,000 MiB")


def test_no_files(tmp_path: Path):
    """M1: where nothing can be read the host's values count, with a note; without those nothing is claimed."""
    machine = Machine(tmp_path)
    (machine.proc / "self" / "cgroup").unlink()
    found = host_memory(machine.proc)

    assert found.usable_bytes == 900 * GIB
    assert found.why.startswith("no control group for memory can be read")
    assert host_memory(tmp_path / "nothing").usable_bytes == 0


def test_a_host_with_less_than_the_limit_allows(tmp_path: Path):
    """A limit is no promise: what the host has free counts when it is less."""
    machine = Machine(tmp_path, group="/box")
    machine.memory("box", 950 * GIB, 1, 0)
    found = host_memory(machine.proc)

    assert (found.limit_bytes, found.usable_bytes) == (950 * GIB, 900 * GIB)
    assert found.why.endswith("left by what the host has free")


@pytest.mark.parametrize("root", ["/docker/box", "/", "/elsewhere"])
def test_a_path_of_the_host_in_a_container(tmp_path: Path, root: str):
    """The path may be the host's while the mount shows only the container's own group."""
    machine = Machine(tmp_path, group="/docker/box", root=root)
    machine.memory("", 2 * GIB, 0.5, 0)

    assert host_memory(machine.proc).usable_bytes == int(1.5 * GIB)


@pytest.mark.parametrize(
    ("quota", "affinity", "expected"),
    [
        ("200000 100000", 104, 2), ("max 100000", 4, 4), ("50000 100000", 104, 1), ("150000 100000", 104, 2),
        ("200000 100000", 1, 1), ("800000 100000", 4, 4), ("", 4, 4), ("broken", 4, 4),
    ],
)  # fmt: skip
def test_processors(tmp_path: Path, quota: str, affinity: int, expected: int):
    """M2: the smaller of affinity and quota, rounded up, at least one."""
    machine = Machine(tmp_path, group="/box")
    machine.put("box", {"cpu.max": quota} if quota else {})
    found = processors(affinity=affinity, proc=machine.proc)

    assert found.count == expected
    assert str(affinity) in found.why


@pytest.mark.parametrize(("quota", "expected"), [(200000, 2), (-1, 104)])
def test_processors_in_version_1(tmp_path: Path, quota: int, expected: int):
    """M2: version 1 has quota and period in two files, and -1 for no quota."""
    machine = Machine(tmp_path, version=1, group="/pod/box")
    machine.put("pod", {"cpu.cfs_quota_us": quota, "cpu.cfs_period_us": 100000})
    machine.put("pod/box", {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100000})

    assert processors(affinity=104, proc=machine.proc).count == expected


def test_this_machine():
    """Here the answers are possible ones."""
    found, memory = processors(), host_memory()

    assert 1 <= found.count <= len(os.sched_getaffinity(0))
    assert 0 < memory.usable_bytes <= memory.limit_bytes
    assert shared_memory() >= 0
    assert shared_memory(Path("/nowhere")) == 0


@pytest.mark.parametrize("version", [1, 2])
def test_how_full_it_is(tmp_path: Path, version: int):
    """M1, A6: the group nearest to its limit; no file cache counts, read once or twice, since it is dropped."""
    machine = Machine(tmp_path, version=version, group="/pod/box")
    machine.memory("pod", 16 * GIB, 15, 1, active=2)
    machine.memory("pod/box", 8 * GIB, 7.9, 3, active=4.5)

    assert MemoryWatch(machine.proc).fullest() == (12 * GIB, 16 * GIB)
    machine.memory("pod/box", 8 * GIB, 7.9, 0, active=0)
    assert MemoryWatch(machine.proc).fullest() == (int(7.9 * GIB), 8 * GIB)


@pytest.mark.parametrize("version", [1, 2])
def test_nothing_limits_it(tmp_path: Path, version: int):
    """M1: without a limit nothing is ever full; without files nobody was killed."""
    machine = Machine(tmp_path, version=version, group="/box")
    machine.memory("box", "max" if version == 2 else (1 << 63) - 4096, 7.5, 6)

    assert MemoryWatch(machine.proc).fullest() == (0, 0)
    assert MemoryWatch(machine.proc).kills() == 0
    assert MemoryWatch(tmp_path / "nowhere").fullest() == (0, 0)


@pytest.mark.parametrize("version", [1, 2])
def test_who_was_killed_for_memory(tmp_path: Path, version: int):
    """A6: of this group; those around it count the kills of their other groups too."""
    machine = Machine(tmp_path, version=version, group="/pod/box")
    machine.kills("pod", 7)
    machine.kills("pod/box", 2)

    assert MemoryWatch(machine.proc).kills() == 2
