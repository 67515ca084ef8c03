"""Owns what an accelerator says of itself, the one interface it is asked through, and who is asked.

Values and the order of asking alone. This file must not know how a vendor answers, nor what is enough.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, final

from app_trainer_sdk.gpus import CARDS, Card
from app_trainer_sdk.quantities import MIB

Vendor = Literal["", "nvidia", "amd"]
#: The driver and what is printed on the box differ by this much at most where both mean the same card.
MEMORY_TOLERANCE = 0.06
#: Context and workspace of a card that is not in the catalog: those of a large one.
UNKNOWN_CONTEXT, UNKNOWN_LIBRARY = 650 * MIB, 64 * MIB
#: AMD architectures without bf16 arithmetic.
AMD_WITHOUT_BF16 = ("gfx90[0-6]", "gfx8", "gfx10")


@dataclass(frozen=True)
class Device:
    """One accelerator, or one part of one that works as its own (MIG, compute partition).

    Attributes:
        vendor: ``nvidia`` or ``amd``.
        index: its place in the driver's own order.
        name: the driver's name of it.
        identifier: the driver's unique name, such as ``GPU-...`` or ``MIG-...``.
        total_bytes: memory that programs can have, the driver's own share taken off; 0 when not told.
        free_bytes: what of it nobody holds now; None when not told.
        architecture: CUDA compute capability such as ``9.0``, or AMD's ``gfx942``; empty when not told.
        parent: identifier of the whole card when this is a part of one.
    """

    vendor: Vendor
    index: int
    name: str
    identifier: str
    total_bytes: int
    free_bytes: int | None
    architecture: str
    parent: str = ""

    def card(self) -> Card:
        """This device as planning knows cards: a row of the catalog with the memory that is really there."""
        for row in CARDS:
            # "RTX-4090" is the card RTX 4090, and "A100-80" the A100 with so much memory.
            word = row.name.removeprefix("RTX-").partition("-")[0]
            near = abs(row.memory_bytes - self.total_bytes) <= MEMORY_TOLERANCE * row.memory_bytes
            if near and re.search(rf"(?<![A-Za-z0-9]){word}(?![A-Za-z0-9])", self.name):
                return dataclasses.replace(row, memory_bytes=self.total_bytes)
        return Card(
            self.name, self.name, self.total_bytes, self.architecture, self._has_bf16(), UNKNOWN_CONTEXT,
            UNKNOWN_LIBRARY,
        )  # fmt: skip

    def _has_bf16(self) -> bool:
        if self.vendor == "amd":
            return not any(re.match(pattern, self.architecture) for pattern in AMD_WITHOUT_BF16)
        major = self.architecture.partition(".")[0]
        return not major.isdecimal() or int(major) >= 8


@dataclass(frozen=True)
class Found:
    """What one vendor's driver tells of the whole machine.

    Attributes:
        vendor: whose it is; empty where nobody has anything here.
        driver: version of the driver.
        runtime: newest CUDA version that the driver can serve, such as ``12.2``; empty when not told.
        devices: every device, in the driver's order, whether or not this process may see it.
        problem: why the driver cannot be asked although a device seems to be here.
    """

    vendor: Vendor = ""
    driver: str = ""
    runtime: str = ""
    devices: tuple[Device, ...] = ()
    problem: str = ""


class Probe(Protocol):
    """Whoever can be asked for the accelerators of one vendor. It never raises."""

    def look(self) -> Found:
        """What is here; an empty answer where there is nothing of this vendor."""
        ...


@final
class FixedProbe:
    """Answers what it was given: for tests, and for a machine described elsewhere."""

    def __init__(self, found: Found) -> None:
        self._found = found

    def look(self) -> Found:
        """The same each time."""
        return self._found


def default_probes() -> Sequence[Probe]:
    """One for each vendor, in the order they are asked."""
    from app_trainer_sdk.preflight.amd import AmdProbe
    from app_trainer_sdk.preflight.nvidia import NvidiaProbe

    return (NvidiaProbe(), AmdProbe())


def look(probes: Sequence[Probe] | None = None) -> Found:
    """The first vendor that has devices here; else the first that has a problem; else nothing."""
    answers = [probe.look() for probe in (default_probes() if probes is None else probes)]
    return next(
        (each for each in answers if each.devices), next((each for each in answers if each.problem), Found())
    )
