"""Owns the command ``preflight``, and the same looking before a run: facts, findings, one verdict.

It must not know what is enough (``checks.py``), nor how a run goes on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app_trainer_sdk.attempt.given import given_job
from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.environment import check_environment
from app_trainer_sdk.errors import ExitCode, TrainerError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.job import Job, check_job
from app_trainer_sdk.paths import cache_directory
from app_trainer_sdk.preflight.caches import settle_caches
from app_trainer_sdk.preflight.checks import judge
from app_trainer_sdk.preflight.devices import Probe
from app_trainer_sdk.preflight.facts import gather, needs_of, used_bytes
from app_trainer_sdk.preflight.findings import Report, render_table
from app_trainer_sdk.preflight.image import TorchBuild
from app_trainer_sdk.quantities import GIB
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.transfers.hosts import check_hosts

#: Tries the optional operations, in a process that has torch and that one of them may end.
OPERATIONS = (sys.executable, "-m", "app_trainer_sdk.training.qualify")
#: The report of a run's preflight, in the attempt's folder.
FILE = "preflight.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the machine for a job: 0, 78 when it is unfit, 73 or 64 when a disk or a folder is."""
    from app_trainer_sdk.run import job_parser, require_gpu

    parser = job_parser(
        "app-trainer preflight", "Tell whether this machine can run a job. Nothing is downloaded."
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--operations", action="store_true",
        help="also try, with torch, the optional operations on the device: 8-bit optimizer, compile, attention",
    )  # fmt: skip
    chosen = parser.parse_args(arguments)
    require_gpu(chosen.require_gpu)
    try:
        check_environment()
        job = given_job(chosen.job)
        file = chosen.job if isinstance(chosen.job, Path) else None
        report, variables = look(job, chosen.job_dir.resolve(), ranks=chosen.ranks, job_file=file)
        check_hosts(job)
    except TrainerError as error:
        sys.stderr.write(f"preflight: {error}\n")
        return int(error.code)
    if chosen.operations and report.code not in (ExitCode.HARDWARE_UNFIT, ExitCode.BAD_JOB):
        apply(variables)
        report = replace(report, machine={**report.machine, "operations": _operations()})
    if not chosen.quiet:
        text = (
            json.dumps(report.document(), indent=2, allow_nan=False) + "\n"
            if chosen.json
            else render_table(report)
        )
        sys.stdout.write(text)
    elif (problem := report.error()) is not None:
        sys.stderr.write(f"preflight: {problem}\n")
    return int(report.code)


def look(
    job: Job, directory: Path, *, ranks: int = 1, job_file: Path | None = None,
    checked: tuple[Hyperparameters, ModelRow, str] | None = None, environment: Mapping[str, str] | None = None,
    probes: Sequence[Probe] | None = None, build: TorchBuild | None = None,
) -> tuple[Report, dict[str, str]]:  # fmt: skip
    """Everything about this machine that matters to ``job``, and the variables its processes should have.

    Args:
        job: the job.
        directory: the job's directory.
        ranks: processes that train together.
        job_file: the document, whose age the clock is held against.
        checked: what ``check_job`` gave, where it was asked already.
        environment: variables; those of this process when not given.
        probes: who is asked for accelerators instead of the drivers.
        build: the torch of those processes; the installed one when not given.
    """
    around = os.environ if environment is None else environment
    trainer, cache = find_trainer(job.trainer), cache_directory()
    settled = settle_caches(around, cache)
    needs = needs_of(
        job, trainer, checked or check_job(job, trainer), ranks=ranks, cache=cache, environment=around
    )
    facts = gather(directory, cache, environment=around, probes=probes, build=build)
    if facts.job_disk.free_bytes < needs.requirements.disk_gib * GIB:
        facts = replace(facts, job_disk=replace(facts.job_disk, used_bytes=used_bytes(directory)))
    if job_file is not None and job_file.exists():
        facts = replace(facts, newest=job_file.stat().st_mtime)
    return Report([*judge(facts, needs), *settled.findings], facts.document()), settled.variables


def _operations() -> Any:
    done = subprocess.run(OPERATIONS, capture_output=True, text=True, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        tail = done.stderr.strip().splitlines()[-1:]
        return {"problem": f"the process ended with status {done.returncode}: {' '.join(tail)}"}


def apply(variables: Mapping[str, str]) -> None:
    """Give this process, and those it will start, the variables."""
    os.environ.update(variables)
    if "TMPDIR" in variables:
        tempfile.tempdir = None  # it remembers what it found before


if __name__ == "__main__":
    sys.exit(main())
