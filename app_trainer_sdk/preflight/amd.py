"""Owns what the Linux kernel says of AMD's cards: compute nodes (KFD) and their memory (DRM), by sysfs.

AMD's own library (amdsmi) reads the same files and comes only with ROCm, so it is not needed. Nothing here is
taken from what NVIDIA's cards do: architectures are ``gfx...`` and match exactly, and a driver serves no
runtime. This file must not know which devices a process may see, nor what is enough.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

from app_trainer_sdk.preflight.devices import Device, Found

#: ``heap_type`` of a memory bank: memory of the card, seen by the host or not.
CARD_MEMORY = ("1", "2")


@final
class AmdProbe:
    """Reads sysfs.

    Args:
        system: the system's folder; another one in tests.
        nodes: folder of device files.
    """

    def __init__(self, system: Path = Path("/sys"), nodes: Path = Path("/dev")) -> None:
        self._system = system
        self._nodes = nodes

    def look(self) -> Found:
        """Every compute node that is a card; empty where the kernel knows none."""
        devices = tuple(self._devices())
        if not devices:
            return Found()
        driver = _text(self._system / "module/amdgpu/version") or f"of Linux {os.uname().release}"
        door = self._nodes / "kfd"
        if not os.access(door, os.R_OK | os.W_OK):
            problem = f"{door} cannot be opened, so no program can use the card"
            return Found("amd", driver, problem=problem)
        return Found("amd", driver, devices=devices)

    def _devices(self) -> Iterator[Device]:
        topology = self._system / "class/kfd/kfd/topology/nodes"
        folders = sorted(topology.iterdir(), key=lambda each: int(each.name)) if topology.is_dir() else []
        index = 0
        for folder in folders:
            facts = _properties(folder / "properties")
            # A processor is a node without SIMD units; a card of another container cannot be read at all.
            if int(facts.get("simd_count", "0")) > 0:
                yield self._device(index, folder, facts)
                index += 1

    def _device(self, index: int, folder: Path, facts: Mapping[str, str]) -> Device:
        card = self._system / f"class/drm/renderD{facts.get('drm_render_minor', '')}/device"
        banks = [_properties(bank / "properties") for bank in sorted((folder / "mem_banks").glob("*"))]
        total = sum(int(each["size_in_bytes"]) for each in banks if each.get("heap_type") in CARD_MEMORY)
        used = _text(card / "mem_info_vram_used")
        architecture = _architecture(int(facts.get("gfx_target_version", "0")))
        name = _text(card / "product_name") or _text(folder / "name") or architecture
        identifier = f"GPU-{int(facts.get('unique_id', '0')):016x}"
        free = max(0, total - int(used)) if used.isdecimal() else None
        return Device("amd", index, name, identifier, total, free, architecture)


def _architecture(version: int) -> str:
    """``gfx942`` from 90402; the last two places are hexadecimal digits, as in ``gfx90a``."""
    major, minor, step = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{step:x}" if version else ""


def _properties(path: Path) -> dict[str, str]:
    pairs = (line.partition(" ") for line in _text(path).splitlines())
    return {name: value.strip() for name, _, value in pairs}


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""
