"""The command, and the same looking first thing in a run."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

import fake_drivers
import pytest
from fake_drivers import FakeNvml, nvidia_card

from app_trainer_sdk.catalog import Floor
from app_trainer_sdk.job import check_job, read_job
from app_trainer_sdk.preflight import command
from app_trainer_sdk.preflight.command import apply, look, main
from app_trainer_sdk.preflight.devices import FixedProbe, Found
from app_trainer_sdk.preflight.image import TorchBuild
from app_trainer_sdk.preflight.nvidia import NvidiaProbe
from app_trainer_sdk.testing.toys import ToyTrainer

TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}
#: What a process finds instead of the driver's library and of torch: A13 11.
PYNVML = f"""
from types import SimpleNamespace
GIB = 1 << 30
{inspect.getsource(fake_drivers.FakeNvml)}
card = {{"name": "NVIDIA GeForce RTX 5060", "uuid": "GPU-5060", "total": 8 * GIB, "capability": (12, 0)}}
fake = FakeNvml([card], driver="535.183.01", cuda=12020)
globals().update({{name: getattr(fake, name) for name in dir(fake) if name.startswith(("nvml", "NVML"))}})
"""
TORCH = "__version__ = '2.13.0+cu130'\ncuda: str = '13.0'\nhip = None\n"


@pytest.fixture
def misfit(tmp_path):
    """Variables of a process on a machine with 8 GiB, driver 535 and sm_120, in an image made for others."""
    packages = tmp_path / "packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "pynvml.py").write_text(PYNVML)
    (packages / "torch/__init__.py").write_text("raise ImportError('a preflight has no need of torch')")
    (packages / "torch/version.py").write_text(TORCH)
    facts = tmp_path / "image.json"
    facts.write_text(json.dumps({"torch": "2.13.0+cu130", "architectures": ["sm_80", "sm_90"]}))
    paths = os.pathsep.join([str(packages), os.environ.get("PYTHONPATH", "")])
    cache = str(tmp_path / "cache")
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "APP_TRAINER_IMAGE_FACTS": str(facts),
        "APP_TRAINER_CACHE_DIR": cache,
    }


def test_a_run_on_a_misfit_ends_before_anything_is_fetched(tmp_path, misfit, serve):
    """A13 11: 78 with what helps, told in result and terminal event; the server of the input hears nothing."""
    server = serve(lambda handler, request: None)
    job = tmp_path / "job.json"
    job.write_text(json.dumps({**TOY, "inputs": {"dataset": f"{server.url}/rows"}}))
    command = [sys.executable, "-m", "app_trainer_sdk.run", "--job", job, "--job-dir", tmp_path / "dir"]
    done = subprocess.run([*map(str, command), "--require-gpu"], env=misfit, capture_output=True, text=True)
    result = json.loads((tmp_path / "dir/result.json").read_text())
    report = json.loads((tmp_path / "dir/attempts/1/preflight.json").read_text())
    terminal = json.loads((tmp_path / "dir/attempts/1/events.jsonl").read_text().splitlines()[-1])

    assert done.returncode == 78, done.stdout + done.stderr
    assert server.received == []
    assert (result["exit_code"], terminal["type"], result["failure"]["retry"]) == (
        78,
        "job.failed",
        "other machine",
    )
    assert [each["check"] for each in report["findings"] if each["status"] == "failed"] == [
        "driver",
        "architecture",
    ]
    assert "580" in result["failure"]["message"]
    assert result["failure"]["phase"] == "preflight"
    assert "sm_120" in done.stdout + done.stderr


def test_all_three_are_found_at_once_without_network(tmp_path, monkeypatch):
    """A13 11, with a floor: in this process, where any connection would fail. Exit 78."""

    def refuse(*arguments):
        raise AssertionError("a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    job = read_job(TOY)
    settings, row, method = check_job(job, ToyTrainer)
    checked = settings, dataclasses.replace(row, floors={method: Floor(10.0)}), method
    library = FakeNvml([nvidia_card(gib=8, capability=(12, 0))], driver="535.183.01", cuda=12020)
    build = TorchBuild("2.13.0+cu130", cuda="13.0", architectures=("sm_90",))
    report, _ = look(job, tmp_path, checked=checked, probes=[NvidiaProbe(library)], build=build)

    assert [each.check for each in report.failed] == ["gpu memory", "driver", "architecture"]
    assert all(each.help for each in report.failed)
    assert report.code == 78


def write_job(tmp_path, **parts):
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**TOY, **parts}))
    return ["--job", str(path), "--job-dir", str(tmp_path / "dir")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))


def test_the_command_tells_a_table_or_json(tmp_path, capsys):
    """0 on a machine that fits; the job's directory is not made."""
    assert main(write_job(tmp_path)) == 0
    assert "preflight: fit" in capsys.readouterr().out

    assert main([*write_job(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)

    assert (document["schema"], document["fit"]) == ("app.trainer.preflight/v1", True)
    assert {"accelerator", "disk", "host memory", "shared memory", "caches", "clock"} <= {
        each["check"] for each in document["findings"]
    }
    assert not (tmp_path / "dir").exists()


def test_a_gpu_that_is_asked_for_must_be_there(tmp_path, capsys, monkeypatch):
    """By flag or variable; without either the processors train."""
    job = read_job(TOY)
    nothing = [FixedProbe(Found())]

    assert look(job, tmp_path, probes=nothing, environment={"HOME": str(tmp_path)})[0].code == 0

    asked = {"HOME": str(tmp_path), "APP_TRAINER_REQUIRE_GPU": "1"}

    assert look(job, tmp_path, probes=nothing, environment=asked)[0].code == 78

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")

    assert main([*write_job(tmp_path), "--require-gpu"]) == 78
    assert "--require-gpu" in capsys.readouterr().out


def test_a_wrong_job_is_refused_as_everywhere(tmp_path, capsys):
    assert main(write_job(tmp_path, model="toy-mpl")) == 64
    assert "toy-mlp" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_the_wrong_setting(tmp_path, capsys, monkeypatch):
    """As a run refuses it, told once; with --quiet only the error is told."""
    words = write_job(tmp_path)[:2]

    assert main([*words, "--job-dir", "/proc/nope"]) == 64
    assert "nothing can be written in /proc/nope" in capsys.readouterr().out

    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", "/proc/cache")
    assert main([*words, "--job-dir", str(tmp_path / "dir"), "--quiet"]) == 64
    out, told = capsys.readouterr()
    assert (out, told.count("APP_TRAINER_CACHE_DIR"), told.count("needed")) == ("", 1, 1)


def test_a_clock_behind_the_job_is_found(tmp_path, capsys):
    words = write_job(tmp_path)
    os.utime(words[1], (time.time() + 1e6,) * 2)

    assert main(words) == 78
    assert "when the job was written" in capsys.readouterr().out


def test_variables_reach_this_process_and_its_temporary_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", tempfile.gettempdir())  # what it is again afterwards
    apply({"TMPDIR": str(tmp_path)})

    assert tempfile.gettempdir() == str(tmp_path)


def test_operations_are_tried_when_asked(tmp_path, capsys, monkeypatch):
    """By a process of its own; one that ends without an answer is told as such."""
    words = [*write_job(tmp_path), "--operations", "--json"]
    monkeypatch.setattr(command, "OPERATIONS", [sys.executable, "-c", "print('{\"torch_compile\": 1}')"])
    main(words)

    assert json.loads(capsys.readouterr().out)["machine"]["operations"] == {"torch_compile": 1}

    monkeypatch.setattr(command, "OPERATIONS", [sys.executable, "-c", "raise SystemExit('no kernel')"])
    main(words)

    told = json.loads(capsys.readouterr().out)["machine"]["operations"]["problem"]

    assert told == "the process ended with status 1: no kernel"
