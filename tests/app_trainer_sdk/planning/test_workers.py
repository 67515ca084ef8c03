"""How many processes read, by what reading takes and what there is room for; each answer has its reason."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.plan import DeviceFacts
from app_trainer_sdk.planning.workers import Demand, Reading, choose_workers

ROWS = DataFacts(rows=1000)
CPU = DeviceFacts("cpu", "a processor", bf16=False, cores=2, shared_memory_bytes=8 << 30)
CARD = dataclasses.replace(CPU, kind="cuda", name="a card", cores=8)
#: 8 rows: 40 ms to decode, 1.3 ms to hand over, 1.2 MB.
HEAVY = Reading(
    rows=24,
    item_seconds=0.005,
    collate_seconds=1e-5,
    copy_seconds=1e-4,
    row_bytes=150_000,
    worker_bytes=20 << 20,
)
LIGHT = dataclasses.replace(HEAVY, item_seconds=1e-6, collate_seconds=2e-6)
ONE = Demand(microbatch=8, rows=8)


def choose(device: DeviceFacts = CARD, reading: Reading | None = HEAVY, **more: Any) -> tuple[int, str]:
    told = {"cores": device.cores, "demand": ONE, **more}
    return choose_workers(ROWS, device, reading=reading, **told)


@pytest.mark.parametrize(
    ("device", "reading", "demand", "workers", "why"),
    [
        (CARD, LIGHT, ONE, 0, "reading a microbatch takes 0.024 ms on one processor"),
        (CARD, LIGHT, ONE, 0, "light, so the training process reads"),
        (CPU, LIGHT, ONE, 0, "light"),
        (CARD, HEAVY, ONE, 4, "4 read ahead, while nobody knows how long an update takes"),
        (CPU, HEAVY, ONE, 2, "the rank has 2 usable processors, which train and read"),
        (CARD, HEAVY, Demand(8, 8, 3.0, "measured by X"), 0, "(measured by X): reading is below 2% of it"),
        (CARD, HEAVY, Demand(8, 8, 0.1, "measured by X"), 1, "1 keeps up with it"),
        (CARD, HEAVY, Demand(8, 32, 0.1, "measured by X"), 3, "3 keep up with it"),
        (
            CARD,
            HEAVY,
            Demand(8, 8, 0.005, "measured by X"),
            8,
            "the rank has 8 usable processors, which train",
        ),
    ],
)
def test_by_what_reading_takes(device: DeviceFacts, reading: Reading, demand: Demand, workers: int, why: str):
    """None for what is light, as many as keep up where an update's time is known, some where it is not."""
    found, told = choose(device, reading, demand=demand)

    assert found == workers
    assert why in told
    assert "24 rows measured here" in told


@pytest.mark.parametrize(
    ("changes", "more", "workers", "why"),
    [
        ({"cores": 1}, {}, 0, "the rank has 1 usable processor, which train"),
        ({"cores": 1, "kind": "cpu"}, {}, 0, "the rank has 1 usable processor, which train"),
        ({"shared_memory_bytes": 64 << 20}, {}, 4, "4 read ahead"),
        ({"shared_memory_bytes": 16 << 20}, {}, 2, "8 MiB of shared memory hold batches of 1.14 MiB for 2"),
        ({"shared_memory_bytes": 2 << 20}, {}, 0, "1 MiB of shared memory hold batches of 1.14 MiB for 0"),
        ({"shared_memory_bytes": 32 << 20}, {"ranks": 2}, 2, "8 MiB of shared memory"),
        ({"host_memory_bytes": 384 << 20}, {}, 3, "192 MiB of memory hold 3 of 64 MiB"),
        ({"host_memory_bytes": 768 << 20}, {"ranks": 2}, 3, "192 MiB of memory hold 3 of 64 MiB"),
    ],
)
def test_by_what_there_is_room_for(changes: dict[str, Any], more: dict[str, Any], workers: int, why: str):
    """Small shared memory: fewer workers, or none. So with processors, and memory for the processes."""
    device = dataclasses.replace(CARD, **changes)
    found, told = choose(device, **more)

    assert found == workers
    assert why in told


@pytest.mark.parametrize(
    ("reading", "workers", "why"),
    [
        (None, 4, "the device computes while 4 of"),
        (
            Reading(problem="the dataset gave too little within 5 s"),
            4,
            "not measured: the dataset gave too little",
        ),
        (
            Reading(problem="OSError: no", forks=False),
            0,
            "not measured: OSError: no; so the training process reads",
        ),
    ],
)
def test_what_was_not_measured(reading: Reading | None, workers: int, why: str):
    """Another rule then, and said so; what a process of its own cannot read, no worker can."""
    found, told = choose(reading=reading)

    assert found == workers
    assert why in told


def test_what_phases_make_is_measured_after_them():
    """Before, nobody can know."""
    data = dataclasses.replace(ROWS, prepared=True)

    assert choose_workers(data, CARD, cores=8) == (0, "measured once the phases have made what is read")


def test_a_reading_reads_back():
    """The plan keeps it for the starts that follow."""
    assert Reading.from_document(HEAVY.document()) == HEAVY
