"""Owns the rows a trainer image publishes: base models, their architecture, floors and where weights come from.

Rows are data, so that ``describe`` and planning need neither network nor weights. This file must not know
how weights are fetched or loaded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Grade = Literal["declared", "predicted", "measured"]


@dataclass(frozen=True)
class Floor:
    """The least VRAM at which a method runs, with its evidence.

    Attributes:
        gib: GiB of device memory, context and headroom included.
        grade: who says so: somebody wrote it down, the planner computed it, or a run saw it.
        evidence: how it came about: the settings, the card, the date, the SDK's version.
    """

    gib: float
    grade: Grade = "declared"
    evidence: Mapping[str, Any] = field(default_factory=dict)


def read_floors(path: Path) -> dict[str, dict[str, Floor]]:
    """Floors by model and method from the file that ``app-trainer floors`` wrote."""
    document = json.loads(path.read_text(encoding="utf-8"))
    return {
        model: {method: Floor(**floor) for method, floor in methods.items()}
        for model, methods in document["floors"].items()
    }


@dataclass(frozen=True)
class WeightSource:
    """One set of base weights. Sources are tried in the order package, hub.

    Attributes:
        revision: what identifies the content: a Hub commit or a digest.
        hub: Hub repository, ``owner/name``.
        package: an installed Python package that carries the file ``file``.
        file: the file's name inside the package.
        sha256: digest of ``file``.
        size_bytes: total bytes to download.
    """

    revision: str
    hub: str = ""
    package: str = ""
    file: str = ""
    sha256: str = ""
    size_bytes: int = 0


@dataclass(frozen=True)
class ModelRow:
    """A base model a trainer offers.

    Attributes:
        name: the word a job uses.
        title: the name people know.
        parameters: number of parameters.
        architecture: the model's configuration as data, enough to build it without weights.
        weights: sources by role; ``base`` is the usual one.
        floors: least VRAM by method, plus ``inference``.
        defaults: hyperparameter defaults for this model, by method; stronger than the trainer's own.
        licence: SPDX name of the weights' licence.
    """

    name: str
    title: str
    parameters: int
    architecture: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, WeightSource] = field(default_factory=dict)
    floors: Mapping[str, Floor] = field(default_factory=dict)
    defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    licence: str = ""


@dataclass(frozen=True)
class Requirements:
    """What a container of this trainer needs besides device memory. Zero means no stated need.

    Attributes:
        host_memory_gib: GiB of host memory.
        disk_gib: GiB of free disk.
        shared_memory_mib: MiB of ``/dev/shm``.
        compute_capability: least CUDA compute capability, such as ``8.0``.
        driver: least NVIDIA driver version.
    """

    host_memory_gib: float = 0.0
    disk_gib: float = 0.0
    shared_memory_mib: int = 0
    compute_capability: str = ""
    driver: str = ""
