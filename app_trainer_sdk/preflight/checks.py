"""Owns the judgement: which facts of a machine are enough for a job. Pure; every finding at once.

It must not ask anything of the machine itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

from app_trainer_sdk.data_facts import LEAST_SHARED_BYTES
from app_trainer_sdk.preflight.devices import Device
from app_trainer_sdk.preflight.facts import REQUIRE_GPU, Disk, Facts, Needs
from app_trainer_sdk.preflight.findings import Finding, Status
from app_trainer_sdk.quantities import GIB, MIB

#: Oldest NVIDIA driver for programs built with each CUDA generation (NVIDIA, "Minor Version Compatibility").
CUDA_DRIVERS = {11: "450", 12: "525", 13: "580"}
#: An earlier clock was never set, and breaks TLS and signatures.
EARLIEST = datetime(2025, 1, 1, tzinfo=UTC).timestamp()
#: What containers get when nobody asks: known to be too little for workers.
CONTAINER_SHARED_BYTES = 64 << 20
#: How far a file may be ahead of the clock: clocks of machines that share a disk differ.
AHEAD_SECONDS = 3600.0


def judge(facts: Facts, needs: Needs) -> list[Finding]:
    """Every finding, the accelerators' first."""
    checks = (
        _accelerator, _count, _gpu_memory, _driver, _architecture, _host_memory, _processors, _shared, _disks,
        _clock,
    )  # fmt: skip
    return [finding for check in checks for finding in check(facts, needs)]


def trains_on(facts: Facts) -> tuple[Device, ...]:
    """Visible devices that the installed torch can use at all."""
    return facts.visible.devices if facts.build.drives(facts.found.vendor) else ()


def _accelerator(facts: Facts, needs: Needs) -> Iterator[Finding]:
    devices, build = trains_on(facts), facts.build
    yield from (Finding("visible devices", "warning", wrong) for wrong in facts.visible.problems)
    if devices:
        names = ", ".join(each.name for each in devices)
        yield Finding("accelerator", "ok", f"{len(devices)}: {names} ({facts.visible.why})")
        return
    needed, helps = f"a GPU: --require-gpu or {REQUIRE_GPU}" if needs.require_gpu else "", ""
    told = bool(facts.found.devices or facts.found.problem)
    if facts.visible.devices:
        found = f"{facts.visible.devices[0].name}, and torch {build.version or 'is not installed'}, built for "
        found += f"CUDA {build.cuda}" if build.cuda else f"ROCm {build.hip}" if build.hip else "the CPU alone"
        helps = "an image whose torch is built for this card"
    elif facts.found.devices:
        found, helps = (
            f"{len(facts.found.devices)} devices, all hidden by {facts.visible.why}",
            "another value of it",
        )
    elif facts.found.problem:
        found, helps = facts.found.problem, "start the container with its devices and their driver's libraries"
    else:
        found, helps = (
            "no GPU",
            "a machine with one, or a container that is given it" if needs.require_gpu else "",
        )
    status: Status = "failed" if needs.require_gpu else "warning" if told else "ok"
    yield Finding(
        "accelerator", status, found if needs.require_gpu else f"{found}: the processors train", needed, helps
    )


def _count(facts: Facts, needs: Needs) -> Iterator[Finding]:
    devices = trains_on(facts)
    if devices and needs.ranks > len(devices):
        found = f"{len(devices)} visible ({facts.visible.why})"
        helps = "fewer --ranks, or more devices made visible"
        yield Finding("gpu count", "failed", found, f"{needs.ranks}, one for each rank", helps)


def _gpu_memory(facts: Facts, needs: Needs) -> Iterator[Finding]:
    for device in trains_on(facts)[: needs.ranks]:
        free = "free not told" if device.free_bytes is None else f"{_gib(device.free_bytes)} free"
        found = f"{device.name} ({device.identifier}): {_gib(device.total_bytes)}, {free}"
        if not device.total_bytes:
            yield Finding("gpu memory", "unknown", f"{device.name} does not tell its memory")
        elif needs.floor is None:
            yield Finding("gpu memory", "unknown", found, f"not known for {needs.method}")
        else:
            needed = f"{needs.floor.gib:g} GiB for {needs.method} ({needs.floor.grade})"
            status, helps = _enough(device, needs.floor.gib * GIB)
            yield Finding("gpu memory", status, found, needed, helps)


def _enough(device: Device, floor: float) -> tuple[Status, str]:
    if device.total_bytes < floor:
        return "failed", "a card with more memory, or a smaller model or method: app-trainer plan tells which"
    if device.free_bytes is not None and device.free_bytes < floor:
        return (
            "failed",
            "end the other programs on the card (nvidia-smi or rocm-smi names them), or take another",
        )
    return "ok", ""


def _driver(facts: Facts, needs: Needs) -> Iterator[Finding]:
    if not trains_on(facts):
        return
    found, build, stated = facts.found, facts.build, needs.requirements.driver
    if found.vendor != "nvidia":
        yield Finding("driver", "ok", f"amdgpu {found.driver}")
        return
    told = f"NVIDIA driver {found.driver}" + (f", up to CUDA {found.runtime}" if found.runtime else "")
    needed, wrong = [], False
    generation = int(build.cuda.partition(".")[0])
    least = CUDA_DRIVERS.get(generation, "")
    serves = int(found.runtime.partition(".")[0]) if found.runtime else 0
    needed.append(
        f"CUDA {build.cuda}, that is driver {least or 'of its generation'} or newer (torch {build.version})"
    )
    wrong = serves < generation if serves else bool(least) and _number(found.driver) < _number(least)
    if stated:
        needed.append(f"driver {stated} (the trainer)")
        wrong = wrong or _number(found.driver) < _number(stated)
    newest = max(filter(None, (least, stated)), key=_number, default="")
    helps = f"a machine with driver {newest} or newer, or an image built for an older CUDA" if wrong else ""
    yield Finding("driver", "failed" if wrong else "ok", told, "; ".join(needed), helps)


def _architecture(facts: Facts, needs: Needs) -> Iterator[Finding]:
    stated = needs.requirements.compute_capability
    for device in {each.architecture: each for each in trains_on(facts)[: needs.ranks]}.values():
        name = _shown(device)
        if device.vendor == "nvidia" and stated and _number(device.architecture) < _number(stated):
            yield Finding(
                "architecture", "failed", name, f"compute capability {stated} (the trainer)", "a newer card"
            )
            continue
        served = facts.build.serves(device.architecture)
        if served is None:
            yield Finding("architecture", "unknown", name, f"those that torch was built for: {facts.build.why}")
            continue
        listed = f"one of {' '.join(facts.build.architectures)} (torch {facts.build.version})"
        helps = "" if served else "an image whose torch has kernels for this card, or another card"
        yield Finding("architecture", "ok" if served else "failed", name, listed, helps)


def _host_memory(facts: Facts, needs: Needs) -> Iterator[Finding]:
    least = int(needs.requirements.host_memory_gib * GIB)
    found = f"{_gib(facts.memory.limit_bytes)}, {_gib(facts.memory.usable_bytes)} left ({facts.memory.why})"
    needed = f"{_gib(least)} (the trainer)" if least else ""
    if facts.memory.limit_bytes < least:
        yield Finding(
            "host memory", "failed", found, needed, "a larger memory limit of the container, or a larger host"
        )
    elif facts.memory.usable_bytes < least:
        yield Finding("host memory", "warning", found, needed, "end what else runs within the limit")
    else:
        yield Finding("host memory", "ok", found, needed)


def _processors(facts: Facts, needs: Needs) -> Iterator[Finding]:
    count, wanted = facts.processors.count, needs.ranks * (1 + (needs.workers or 0))
    needed = (
        f"{wanted}: {needs.ranks} rank(s), each with {needs.workers or 0} loader workers" if wanted > 1 else ""
    )
    slow = wanted > count
    helps = "a larger processor quota, or fewer workers; it will be slower" if slow else ""
    yield Finding("processors", "warning" if slow else "ok", f"{count} ({facts.processors.why})", needed, helps)


def _shared(facts: Facts, needs: Needs) -> Iterator[Finding]:
    """Workers hand batches over in ``/dev/shm``; where it is full they die of a bus error."""
    stated = needs.requirements.shared_memory_mib * MIB
    wished = LEAST_SHARED_BYTES if needs.workers else 0
    least, found = max(stated, wished), f"{facts.shared_bytes // MIB:,} MiB free in /dev/shm"
    who = "the trainer" if stated >= wished else f"{needs.ranks} x {needs.workers} loader workers, to be safe"
    needed = f"{least // MIB:,} MiB ({who})" if least else ""
    too_small = facts.shared_bytes < stated or (wished and facts.shared_bytes <= CONTAINER_SHARED_BYTES)
    status: Status = "failed" if too_small else "warning" if facts.shared_bytes < least else "ok"
    helps = "--shm-size, an emptyDir of medium Memory at /dev/shm, or dataloader_workers 0"
    yield Finding("shared memory", status, found, needed, "" if status == "ok" else helps)


def _disks(facts: Facts, needs: Needs) -> Iterator[Finding]:
    stated = max(0, int(needs.requirements.disk_gib * GIB) - facts.job_disk.used_bytes)
    job, cache = facts.job_disk, facts.cache_disk
    if job.system == cache.system:
        fetched = needs.input_bytes + needs.weight_bytes
        yield _disk("disk", job, max(stated, fetched), f"{_gib(stated)} for the job, {_gib(fetched)} to fetch")
    else:
        told = f"{_gib(stated)} for the job, {_gib(needs.input_bytes)} of inputs to fetch"
        yield _disk("disk", job, max(stated, needs.input_bytes), told)
        yield _disk("cache disk", cache, needs.weight_bytes, f"{_gib(needs.weight_bytes)} of weights to fetch")
    if job.problem:  # the cache's is found where libraries' folders are settled
        helps = "another --job-dir (APP_TRAINER_JOB_DIR), or a volume that user and group may write"
        found = f"nothing can be written in {job.path}: {job.problem}"
        yield Finding("job folder", "failed", found, "a writable folder", helps, setting=True)


def _disk(check: str, disk: Disk, least: int, why: str) -> Finding:
    found = f"{_gib(disk.free_bytes)} free for {disk.path}"
    small = disk.free_bytes < least
    helps = "a larger volume, or remove what is not needed" if small else ""
    return Finding(check, "failed" if small else "ok", found, why if least else "", helps, disk=True)


def _clock(facts: Facts, needs: Needs) -> Iterator[Finding]:
    found = datetime.fromtimestamp(facts.now, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    least = max(EARLIEST, facts.newest - AHEAD_SECONDS)
    if facts.now < least:
        needed = "after " + datetime.fromtimestamp(least, UTC).strftime("%Y-%m-%d %H:%M")
        who = " (when this software was written)" if least == EARLIEST else " (when the job was written)"
        yield Finding("clock", "failed", found, needed + who, "a machine whose clock is set: certificates fail")
    else:
        yield Finding("clock", "ok", found)


def _shown(device: Device) -> str:
    if device.vendor == "amd":
        return f"{device.name}: {device.architecture or 'not told'}"
    major, _, minor = device.architecture.partition(".")
    return f"{device.name}: {f'sm_{major}{minor}' if minor else 'not told'}"


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def _gib(count: float) -> str:
    return f"{count / MIB:.0f} MiB" if 0 < count < GIB / 10 else f"{count / GIB:.1f} GiB"
