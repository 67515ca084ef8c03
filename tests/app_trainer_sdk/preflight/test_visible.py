"""Variables that hide devices, read as the drivers read them."""

from __future__ import annotations

import pytest
from fake_drivers import machine

from app_trainer_sdk.preflight.visible import visible_devices


def seen(found, **variables):
    return [each.index for each in visible_devices(found, variables).devices]


@pytest.mark.parametrize(
    ("words", "indices"),
    [(None, [0, 1, 2, 3]), ("2,0", [2, 0]), (" 1 , 3", [1, 3]), ("", []), ("-1", []), ("0,-1,2", [0]),
     ("0,7,2", [0]), ("1,1", []), ("GPU-2", [2]), ("GPU-3abc,GPU-0abc", [3, 0]),
     ("GPU-", []), ("NoDevFiles", [])],
)  # fmt: skip
def test_cuda_s_list(words, indices):
    """Numbers, identifiers and their beginnings; the first word that leads nowhere ends it; twice hides all."""
    variables = {} if words is None else {"CUDA_VISIBLE_DEVICES": words}

    assert seen(machine(), **variables) == indices


def test_a_word_that_leads_nowhere_is_told():
    told = visible_devices(machine(), {"CUDA_VISIBLE_DEVICES": "0,GPU-x,1"})

    assert "'GPU-x'" in told.problems[0]
    assert told.why == "CUDA_VISIBLE_DEVICES=0,GPU-x,1"


def test_a_process_gets_one_part_of_a_divided_card():
    """MIG parts by their identifier in both spellings; several become the first."""
    found = machine(parents=("GPU-aa", "GPU-bb", "GPU-bb", ""))

    assert seen(found, CUDA_VISIBLE_DEVICES="MIG-1abc") == [1]
    assert seen(found, CUDA_VISIBLE_DEVICES="MIG-GPU-aa/1/0") == [0]
    assert seen(found, CUDA_VISIBLE_DEVICES="MIG-2abc,MIG-1abc") == [2]
    assert "only one" in visible_devices(found, {}).problems[0]


def test_rocm_hides_twice():
    """HIP numbers what ROCr left; NVIDIA's variable is heard where HIP's own is not set."""
    found = machine("amd")

    assert seen(found, ROCR_VISIBLE_DEVICES="3,2,1", HIP_VISIBLE_DEVICES="0,2") == [3, 1]
    assert seen(found, ROCR_VISIBLE_DEVICES="GPU-1abc") == [1]
    assert seen(found, CUDA_VISIBLE_DEVICES="1") == [1]
    assert seen(found, HIP_VISIBLE_DEVICES="2", CUDA_VISIBLE_DEVICES="1") == [2]
    assert seen(machine(), ROCR_VISIBLE_DEVICES="1", HIP_VISIBLE_DEVICES="") == [0, 1, 2, 3]


def test_numbers_of_unlike_cards_are_uncertain():
    """CUDA counts the fastest first unless told otherwise."""
    found = machine(names=("A", "B", "A", "A"))
    told = {"CUDA_VISIBLE_DEVICES": "1"}

    assert visible_devices(found, told).problems
    assert not visible_devices(found, {**told, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).problems
    assert not visible_devices(found, {"CUDA_VISIBLE_DEVICES": "GPU-1"}).problems
