"""What Linux tells of AMD's cards."""

from __future__ import annotations

import pytest
from fake_drivers import GIB, MI300X, kernel_with

from app_trainer_sdk.preflight.amd import AmdProbe
from app_trainer_sdk.preflight.devices import Found


def test_a_card_is_a_node_with_simd_units(tmp_path):
    found = AmdProbe(**kernel_with(tmp_path, MI300X)).look()
    [device] = found.devices

    assert (device.name, device.architecture) == ("AMD Instinct MI300X OAM", "gfx942")
    assert (device.total_bytes, device.free_bytes) == (192 * GIB, 190 * GIB)
    assert device.identifier == "GPU-0000000000000abc"
    assert found.runtime == ""


@pytest.mark.parametrize(
    ("version", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (110000, "gfx1100"), (0, "")]
)
def test_architectures_are_named_as_the_compiler_names_them(tmp_path, version, name):
    found = AmdProbe(**kernel_with(tmp_path, {**MI300X, "gfx_target_version": version})).look()

    assert found.devices[0].architecture == name


def test_memory_in_use_may_be_unknown(tmp_path):
    """A part of a card has no file of its own for it."""
    card = {name: value for name, value in MI300X.items() if name not in ("used", "product")}

    assert AmdProbe(**kernel_with(tmp_path, card)).look().devices[0].free_bytes is None


def test_without_the_kernel_s_door_no_card_is_of_use(tmp_path):
    """A container without ``--device /dev/kfd``."""
    found = AmdProbe(**kernel_with(tmp_path, MI300X, access=False)).look()

    assert not found.devices
    assert "kfd cannot be opened" in found.problem


def test_a_machine_without_cards_has_none(tmp_path):
    assert AmdProbe(**kernel_with(tmp_path)).look() == Found()
    assert AmdProbe(tmp_path / "nothing", tmp_path).look() == Found()
