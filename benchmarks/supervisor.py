"""Measures the supervisor's own weight: memory, and the time until its rank begins, beside ``import pydantic``.

::

    python benchmarks/supervisor.py [--pairs 9] [TRAINER MODEL]

It is all of ``app-trainer run``, from the interpreter's start on; only the rank is another: a process without
torch that notes when it began and ends at once. Memory is the peak of the whole life, with the event sender and
a loopback address that refuses. Processor time is the supervisor's and its children's until then: what the wall
clock says on a machine that does nothing else. Both processes may write bytecode, as installed code does, and
run as in an image, where pydantic looks for no plugins. Bounds: 60 MiB and 0.4 s.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BOUND_MIB, BOUND_SECONDS = 60, 0.4
TOY = ("app_trainer_sdk.testing.toys:ToyTrainer", "toy-mlp")
RANK = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1]).parent
begun = time.monotonic()
fields = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
processor = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
(folder / "begun").write_text(f"{begun} {processor}")
time.sleep(0.5)
outcome = {"status": "succeeded", "exit_code": 0, "name": "succeeded", "outputs": [], "timings": {}}
(folder / "outcome-0.json").write_text(json.dumps(outcome))
"""
SUPERVISOR = """
import functools, sys
from app_trainer_sdk import cli

def with_its_rank(name):
    from app_trainer_sdk.attempt import admission
    program = [sys.executable, "-I", "-S", "-c", sys.argv[2]]
    admission.Supervisor = functools.partial(admission.Supervisor, program=program)
    return import_module(name)

import_module, cli.import_module = cli.import_module, with_its_rank
code = cli.main(["run", "--quiet", "--job", sys.argv[1] + "/job.json", "--job-dir", sys.argv[1] + "/dir"])
import resource
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
sys.exit(code)
"""
PYDANTIC = "import pydantic, resource, time; pydantic.BaseModel; "
PYDANTIC += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time())"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9, help="measured pairs")
    parser.add_argument("trainer", nargs="*", default=TOY, help="a trainer and one of its models")
    arguments = parser.parse_args()
    trainer, model = arguments.trainer
    rows: dict[str, list[tuple[float, float, float]]] = {"import pydantic": [], "supervisor": []}
    for round_number in range(arguments.pairs + 1):
        pairs = {"import pydantic": bare(), "supervisor": supervised(trainer, model)}
        for name, pair in pairs.items():
            if round_number > 0:  # the first round writes bytecode and fills the file cache
                rows[name].append(pair)
    for name, pairs in rows.items():
        seconds, mebibytes, processor = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"{name:16} {mebibytes:6.1f} MiB peak   {seconds:5.3f} s   {processor:5.3f} s of a processor")
    fastest = min(seconds for seconds, *_ in rows["supervisor"])
    print(f"bounds {BOUND_MIB} MiB, {BOUND_SECONDS} s until the rank begins (fastest {fastest:.3f} s)")


def bare() -> tuple[float, float, float]:
    """Seconds, peak MiB and processor seconds of a process that imports pydantic."""
    words = [sys.executable, "-c", PYDANTIC]
    started = time.monotonic()
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment())
    peak, processor = done.stdout.split()
    return time.monotonic() - started, int(peak) / 1024, float(processor)


def supervised(trainer: str, model: str) -> tuple[float, float, float]:
    """Seconds until the rank begins, the supervisor's peak MiB, and its processor seconds until then."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        job = {"trainer": trainer, "model": model, "callbacks": "http://127.0.0.1:9/events"}
        (folder / "job.json").write_text(json.dumps(job))
        own = {"APP_TRAINER_UPLOAD_WAIT_SECONDS": "0.2", "APP_TRAINER_ATTEMPT": "1"}
        own["APP_TRAINER_CACHE_DIR"] = str(folder / "cache")
        words = [sys.executable, "-c", SUPERVISOR, directory, RANK]
        started = time.monotonic()
        done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment() | own)
        begun, processor = map(float, (folder / "dir" / "attempts" / "1" / "begun").read_text().split())
        return begun - started, int(done.stdout) / 1024, processor


def environment() -> dict[str, str]:
    """This one, with bytecode, and without pydantic's looking for plugins, as in an image."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYDANTIC_DISABLE_PLUGINS": "__all__"}


if __name__ == "__main__":
    main()
