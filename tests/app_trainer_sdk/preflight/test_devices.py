"""Cards as planning knows them, and which vendor's answer counts."""

from __future__ import annotations

import pytest

from app_trainer_sdk.preflight.devices import Device, FixedProbe, Found, look

GIB = 1 << 30


def device(name, gib, architecture="9.0", vendor="nvidia"):
    return Device(vendor, 0, name, "GPU-0", int(gib * GIB), None, architecture)


@pytest.mark.parametrize(
    ("name", "gib", "card"),
    [("NVIDIA H200", 139.8, "H200"), ("NVIDIA A100-SXM4-80GB", 79.2, "A100-80"), ("NVIDIA L40S", 44.4, "L40S"),
     ("NVIDIA A100-PCIE-40GB", 39.4, "A100-40"), ("NVIDIA L4", 22.0, "L4"), ("Tesla T4", 14.6, "T4"),
     ("NVIDIA GeForce RTX 4090", 23.6, "RTX-4090"), ("NVIDIA H100 80GB HBM3", 79.2, "H100-80"),
     ("AMD Instinct MI300X OAM", 191.9, "MI300X")],
)  # fmt: skip
def test_a_driver_s_name_is_found_in_the_catalog(name, gib, card):
    """With the memory that is really there."""
    found = device(name, gib).card()

    assert (found.name, found.memory_bytes) == (card, int(gib * GIB))


@pytest.mark.parametrize(
    ("name", "gib", "architecture", "bf16"),
    [("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.8, "9.0", True),
     ("NVIDIA GeForce RTX 4090 Laptop GPU", 15.6, "8.9", True),
     ("Quadro RTX 6000", 23.6, "7.5", False), ("AMD Radeon VII", 16, "gfx906", False),
     ("AMD Radeon RX 7900 XTX", 24, "gfx1100", True)],
)  # fmt: skip
def test_any_other_card_is_itself(name, gib, architecture, bf16):
    """A part of a card, or one with another memory, is not the card of that name."""
    vendor = "amd" if architecture.startswith("gfx") else "nvidia"
    found = device(name, gib, architecture, vendor).card()

    assert (found.name, found.architecture, found.bf16) == (name, architecture, bf16)
    assert found.context_bytes > 0


def test_devices_count_before_problems():
    """A broken driver beside a working one is not the machine's answer."""
    broken, works = Found("nvidia", problem="no"), Found("amd", devices=(device("x", 1),))

    assert look([FixedProbe(broken), FixedProbe(works)]) is works
    assert look([FixedProbe(Found()), FixedProbe(broken)]) is broken
    assert look([]) == Found()
