"""Which machine is enough for which job, and what each refusal says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app_trainer_sdk.catalog import Floor, Requirements
from app_trainer_sdk.limits import HostMemory, Processors
from app_trainer_sdk.preflight.checks import judge
from app_trainer_sdk.preflight.devices import Device, Found
from app_trainer_sdk.preflight.facts import Disk, Facts, Needs
from app_trainer_sdk.preflight.image import TorchBuild
from app_trainer_sdk.preflight.visible import visible_devices

GIB = 1 << 30
CUDA = TorchBuild("2.13.0+cu130", cuda="13.0", architectures=("sm_80", "sm_90", "sm_100"), why="/image.json")


def card(**facts):
    usual = {
        "vendor": "nvidia",
        "index": 0,
        "name": "NVIDIA H100",
        "identifier": "GPU-1",
        "architecture": "9.0",
    }
    return Device(**{**usual, "total_bytes": 80 * GIB, "free_bytes": 79 * GIB, **facts})


def machine(
    *devices, driver="580.95.05", runtime="13.0", environment=None, vendor="nvidia", problem="", **facts
):
    found = Found(vendor if devices or problem else "", driver, runtime, devices, problem)
    parts = {
        "found": found, "visible": visible_devices(found, environment or {}), "build": CUDA,
        "memory": HostMemory(64 * GIB, 60 * GIB, "no limit"), "processors": Processors(16, "affinity"),
        "shared_bytes": 8 * GIB, "job_disk": Disk("/job", 1, 99 * GIB),
        "cache_disk": Disk("/cache", 1, 99 * GIB),
        "now": 1.8e9,
    }  # fmt: skip
    return Facts(**{**parts, **facts})


def told(facts, check, **needs):
    """Status, and everything said, of the findings of one check."""
    found = [each for each in judge(facts, Needs(method="lora", **needs)) if each.check == check]
    return [each.status for each in found], " | ".join(map(str, found))


def test_a_fit_machine_has_only_good_findings():
    needs = Needs(
        method="lora", floor=Floor(10.0), ranks=2, require_gpu=True, workers=2,
        requirements=Requirements(4.0, 4.0, 512, "8.0", "550"), input_bytes=GIB, weight_bytes=GIB,
    )  # fmt: skip
    findings = judge(machine(card(), card(identifier="GPU-2")), needs)

    assert {each.status for each in findings} == {"ok"}, findings
    assert len(findings) == 10


def test_a_misfit_is_told_whole():
    """A13 11: a small card, an old driver and no kernels for the card: each found, needed, and what helps."""
    facts = machine(
        card(name="X", total_bytes=8 * GIB, free_bytes=7 * GIB, architecture="12.0"),
        driver="535.183.01", runtime="12.2",
    )  # fmt: skip
    failed = [each for each in judge(facts, Needs(method="lora", floor=Floor(10.0))) if each.status == "failed"]

    assert [each.check for each in failed] == ["gpu memory", "driver", "architecture"]
    assert all(each.found and each.needed and each.help for each in failed)
    assert "8.0 GiB" in failed[0].found
    assert "10 GiB" in failed[0].needed
    assert "535.183.01" in failed[1].found
    assert "580" in failed[1].help
    assert "sm_120" in failed[2].found
    assert "sm_100" in failed[2].needed


def test_memory_that_another_program_holds_is_missed():
    statuses, text = told(machine(card(free_bytes=3 * GIB)), "gpu memory", floor=Floor(10.0))

    assert statuses == ["failed"]
    assert "3.0 GiB free" in text
    assert "end the other programs" in text


@pytest.mark.parametrize(("floor", "device"), [(None, card()), (Floor(10.0), card(total_bytes=0))])
def test_what_nobody_told_is_unknown(floor, device):
    """No floor, or a card that does not tell its memory: neither stops a job."""
    assert told(machine(device), "gpu memory", floor=floor)[0] == ["unknown"]


def test_only_the_ranks_own_cards_must_be_large_enough():
    facts = machine(card(), card(total_bytes=GIB, free_bytes=GIB))

    assert told(facts, "gpu memory", floor=Floor(10.0))[0] == ["ok"]
    assert told(facts, "gpu memory", floor=Floor(10.0), ranks=2)[0] == ["ok", "failed"]


def test_more_ranks_than_visible_devices():
    facts = machine(card(), card(identifier="GPU-2"), environment={"CUDA_VISIBLE_DEVICES": "GPU-2"})
    statuses, text = told(facts, "gpu count", ranks=2)

    assert statuses == ["failed"]
    assert "CUDA_VISIBLE_DEVICES=GPU-2" in text


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        (machine(), "ok", "no GPU"),
        (machine(problem="the driver's library: mismatch"), "warning", "mismatch"),
        (
            machine(card(), environment={"CUDA_VISIBLE_DEVICES": "-1"}),
            "warning",
            "hidden by CUDA_VISIBLE_DEVICES=-1",
        ),
        (machine(card(), build=TorchBuild("2.13.0+cpu")), "warning", "2.13.0+cpu, built for the CPU alone"),
        (machine(card(vendor="amd"), vendor="amd"), "warning", "built for CUDA 13.0"),
    ],
)
def test_without_a_usable_gpu_the_processors_train_unless_one_is_asked_for(facts, status, words):
    statuses, text = told(facts, "accelerator")

    assert (statuses, words in text) == ([status], True), text
    assert "the processors train" in text
    assert told(facts, "accelerator", require_gpu=True)[0] == ["failed"]
    assert told(facts, "gpu memory", floor=Floor(10.0))[0] == []


@pytest.mark.parametrize(
    ("driver", "runtime", "stated", "status"),
    [("535.1", "12.2", "", "failed"), ("580.1", "13.0", "", "ok"), ("570.1", "13.0", "", "ok"),
     ("570.1", "", "", "failed"), ("590.1", "", "", "ok"),
     ("580.9", "13.0", "580.65.06", "failed"), ("580.95.05", "13.0", "580.65.06", "ok")],
)  # fmt: skip
def test_drivers(driver, runtime, stated, status):
    """What the driver serves decides (a compatibility package serves more than its number); else its number."""
    facts = machine(card(), driver=driver, runtime=runtime)

    assert told(facts, "driver", requirements=Requirements(driver=stated))[0] == [status]


def test_an_unwritten_list_of_architectures_is_said():
    facts = machine(card(), build=replace(CUDA, architectures=(), why="no /image.json"))

    assert told(facts, "architecture")[0] == ["unknown"]
    assert "no /image.json" in told(facts, "architecture")[1]


def test_the_trainer_s_least_capability():
    assert told(machine(card()), "architecture", requirements=Requirements(compute_capability="10.0"))[0] == [
        "failed"
    ]


def test_amd_is_not_nvidia():
    """Its architecture must be in the list as it is; its driver serves no version."""
    device = card(vendor="amd", name="MI300X", architecture="gfx942")
    build = TorchBuild("2.13.0+rocm7", hip="7.0", architectures=("gfx90a", "gfx942"), why="/image.json")
    facts = machine(device, vendor="amd", driver="6.14", runtime="", build=build)

    assert told(facts, "architecture")[0] == ["ok"]
    assert told(facts, "driver", requirements=Requirements(driver="580"))[0] == ["ok"]
    assert told(replace(facts, build=replace(build, architectures=("gfx90a",))), "architecture")[0] == [
        "failed"
    ]


@pytest.mark.parametrize(("limit", "left", "status"), [(3, 3, "failed"), (8, 3, "warning"), (8, 5, "ok")])
def test_host_memory_within_the_container_s_limits(limit, left, status):
    """M1: the limit decides, and what others hold of it is only told."""
    facts = machine(memory=HostMemory(limit * GIB, left * GIB, "limit in /sys/fs/cgroup"))

    assert told(facts, "host memory", requirements=Requirements(host_memory_gib=4.0))[0] == [status]


def test_more_workers_than_processors_are_slow():
    """M2."""
    facts = machine(processors=Processors(2, "a quota of 200000/100000 µs, of 104 processors"))

    assert told(facts, "processors", workers=8)[0] == ["warning"]
    assert told(facts, "processors")[0] == ["ok"]


@pytest.mark.parametrize(
    ("mib", "workers", "stated", "status"),
    [(64, 2, 0, "failed"), (64, 0, 0, "ok"), (64, None, 0, "ok"), (512, 2, 0, "warning"), (2048, 2, 0, "ok"),
     (512, 0, 1024, "failed")],
)  # fmt: skip
def test_shared_memory_against_workers(mib, workers, stated, status):
    """Small shared memory: a container's 64 MiB do not hold what workers read ahead."""
    facts = machine(shared_bytes=mib << 20)

    assert told(facts, "shared memory", workers=workers, requirements=Requirements(shared_memory_mib=stated))[
        0
    ] == [status]


def test_disks_share_what_is_free():
    """A13 7: weights and inputs are counted before anything is fetched; on one disk together."""
    one, two = machine(job_disk=Disk("/job", 1, 3 * GIB), cache_disk=Disk("/cache", 1, 3 * GIB)), machine()
    two = replace(two, job_disk=Disk("/job", 1, 3 * GIB), cache_disk=Disk("/cache", 2, 3 * GIB))
    needs = {"input_bytes": 2 * GIB, "weight_bytes": 2 * GIB}

    assert told(one, "disk", **needs)[0] == ["failed"]
    assert (told(two, "disk", **needs)[0], told(two, "cache disk", **needs)[0]) == (["ok"], ["ok"])


def test_what_a_job_has_written_already_counts_for_it():
    facts = machine(job_disk=Disk("/job", 1, 3 * GIB, used_bytes=2 * GIB))

    assert told(facts, "disk", requirements=Requirements(disk_gib=5.0))[0] == ["ok"]


def test_a_folder_in_which_nothing_can_be_made():
    assert told(machine(job_disk=Disk("/job", 2, GIB, problem="Read-only")), "job folder")[0] == ["failed"]


@pytest.mark.parametrize(("now", "newest", "status"), [(1e5, 0, "failed"), (1.8e9, 1.8e9 + 90000, "failed"),
                                                       (1.8e9, 1.8e9 + 60, "ok")])  # fmt: skip
def test_the_clock(now, newest, status):
    """Never set, or behind the job it is to run."""
    assert told(machine(now=now, newest=newest), "clock")[0] == [status]
