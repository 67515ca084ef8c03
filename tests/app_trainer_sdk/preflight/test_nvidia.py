"""What is asked of NVML, and what its refusals mean."""

from __future__ import annotations

import pytest
from fake_drivers import GIB, FakeNvml, nvidia_card

from app_trainer_sdk.preflight.devices import Found
from app_trainer_sdk.preflight.nvidia import NvidiaProbe


def test_a_card_tells_memory_without_the_driver_s_share():
    """Total and free are what programs can have."""
    library = FakeNvml([nvidia_card(gib=100, reserved=GIB, used=3 * GIB)], driver="535.183.01", cuda=12020)
    found = NvidiaProbe(library).look()

    assert (found.driver, found.runtime) == ("535.183.01", "12.2")
    assert (found.devices[0].total_bytes, found.devices[0].free_bytes) == (99 * GIB, 96 * GIB)
    assert (found.devices[0].architecture, library.open) == ("9.0", 0)


def test_an_old_driver_tells_memory_in_one_number():
    """Without the second version of the call the driver's share counts as held."""
    library = FakeNvml([nvidia_card(gib=100, reserved=GIB)], versions=(None,))

    assert NvidiaProbe(library).look().devices[0].free_bytes == 99 * GIB


def test_a_card_that_shares_the_host_s_memory_tells_none():
    assert NvidiaProbe(FakeNvml([nvidia_card()], versions=())).look().devices[0].total_bytes == 0


def test_a_divided_card_is_its_parts():
    """MIG: the card itself is no device any more."""
    parts = [{"name": "NVIDIA H100 MIG 1g.10gb", "uuid": f"MIG-{number}", "total": 10 * GIB} for number in "ab"]
    found = NvidiaProbe(FakeNvml([nvidia_card(0, parts=parts), nvidia_card(1)])).look()

    assert [each.identifier for each in found.devices] == ["MIG-a", "MIG-b", "GPU-11"]
    assert [each.parent for each in found.devices] == ["GPU-00", "GPU-00", ""]
    assert found.devices[0].architecture == "9.0"


@pytest.mark.parametrize("node", ["nvidiactl", ""])
def test_a_driver_that_cannot_be_asked_is_a_problem_only_where_a_card_is(tmp_path, node):
    """On a machine without NVIDIA's devices the library is not there either: that is no problem."""
    if node:
        (tmp_path / node).touch()
    found = NvidiaProbe(FakeNvml([], broken="Driver/library version mismatch"), tmp_path).look()

    assert (found == Found()) == (not node)
    assert ("version mismatch" in found.problem) == bool(node)
