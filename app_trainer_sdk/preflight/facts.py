"""Owns gathering: what the machine is and what a job needs of it, each asked once, without torch or network.

Values for ``checks.py``, which judges them. This file must not know what is enough.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from app_trainer_sdk.catalog import Floor, ModelRow, Requirements
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.job import Job
from app_trainer_sdk.limits import HostMemory, Processors, host_memory, processors, shared_memory
from app_trainer_sdk.paths import PREFIX
from app_trainer_sdk.preflight.caches import problem_of
from app_trainer_sdk.preflight.devices import Found, Probe
from app_trainer_sdk.preflight.image import TorchBuild, installed_torch
from app_trainer_sdk.preflight.present import present_devices
from app_trainer_sdk.preflight.visible import Visible
from app_trainer_sdk.weights import weights_to_come

REQUIRE_GPU = PREFIX + "REQUIRE_GPU"


@dataclass(frozen=True)
class Disk:
    """The file system that a folder is on, or will be.

    Attributes:
        path: the folder.
        system: number of the file system; equal ones share their space.
        free_bytes: what this user may still write.
        used_bytes: what already lies below the folder, counted only where space is short.
        problem: why nothing can be made there; empty where a file was.
    """

    path: str
    system: int
    free_bytes: int
    used_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Facts:
    """A machine, as a process started here sees it; ``newest`` is when the job was written."""

    found: Found
    visible: Visible
    build: TorchBuild
    memory: HostMemory
    processors: Processors
    shared_bytes: int
    job_disk: Disk
    cache_disk: Disk
    now: float
    newest: float = 0.0

    def document(self) -> dict[str, Any]:
        """What is worth keeping beside the findings."""
        return {
            "accelerator": {**asdict(self.found), "devices": len(self.found.devices)},
            "devices": [asdict(each) for each in self.visible.devices], "visible": self.visible.why,
            "torch": asdict(self.build), "host_memory": asdict(self.memory),
            "processors": asdict(self.processors), "shared_memory_bytes": self.shared_bytes,
        }  # fmt: skip


@dataclass(frozen=True)
class Needs:
    """What a job needs of a machine.

    Attributes:
        method: how it trains.
        floor: least memory of a card, where the catalog knows it.
        requirements: what the trainer states.
        ranks: processes that train together.
        workers: loader workers asked for; None when nobody asked.
        require_gpu: whether to refuse a machine on which the processors would train.
        input_bytes, weight_bytes: what is still to be fetched, as far as sizes are known.
    """

    method: str = ""
    floor: Floor | None = None
    requirements: Requirements = field(default_factory=Requirements)
    ranks: int = 1
    workers: int | None = None
    require_gpu: bool = False
    input_bytes: int = 0
    weight_bytes: int = 0


def gather(
    directory: Path, cache: Path, *, environment: Mapping[str, str] | None = None,
    probes: Sequence[Probe] | None = None, build: TorchBuild | None = None,
) -> Facts:  # fmt: skip
    """Ask the machine.

    Args:
        directory: the job's directory, which need not be there yet.
        cache: the cache.
        environment: variables of the processes that will train.
        probes: who is asked for accelerators instead of the drivers.
        build: the torch of those processes; the installed one when not given.
    """
    found, visible = present_devices(environment, probes)
    return Facts(
        found=found, visible=visible, build=build or installed_torch(environment), memory=host_memory(),
        processors=processors(), shared_bytes=shared_memory(), job_disk=disk_of(directory),
        cache_disk=disk_of(cache), now=time.time(),
    )  # fmt: skip


def needs_of(
    job: Job, trainer: type[Trainer], checked: tuple[Hyperparameters, ModelRow, str], *, ranks: int,
    cache: Path, environment: Mapping[str, str] | None = None,
) -> Needs:  # fmt: skip
    """What ``job`` needs; ``checked`` is what ``check_job`` gave."""
    settings, row, method = checked
    asked = settings.dataloader_workers
    word = (os.environ if environment is None else environment).get(REQUIRE_GPU, "")
    remote = [each for each in job.inputs.values() if each.url.startswith(("http://", "https://"))]
    return Needs(
        method=method, floor=row.floors.get(method), requirements=trainer.requirements, ranks=ranks,
        workers=None if asked == "auto" else asked, require_gpu=word.lower() not in ("", "0", "false", "no"),
        input_bytes=sum(each.size or 0 for each in remote),
        weight_bytes=weights_to_come(job, row, cache),
    )  # fmt: skip


def used_bytes(folder: Path) -> int:
    """What lies below a folder. It may be much to count: only asked where it matters."""
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


def disk_of(folder: Path) -> Disk:
    """The file system of a folder that may not be there yet."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        system, space = there.stat().st_dev, os.statvfs(there)
    except OSError as error:
        return Disk(str(folder), 0, 0, problem=error.strerror or type(error).__name__)
    free = space.f_bavail * space.f_frsize
    return Disk(str(folder), system, free, problem=problem_of(there))
