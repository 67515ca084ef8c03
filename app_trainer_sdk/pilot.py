"""Owns the command ``pilot``: one measured pass of everything a job does, and the page that says go or no-go.

The pass runs below the supervisor like a job, in a directory of its own inside the job's: nothing it writes is
read by a run. It says nothing to the control plane. This file must not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk.attempt.given import given_job
from app_trainer_sdk.callbacks.sinks import NoSink
from app_trainer_sdk.claim import alone_in, make_folder
from app_trainer_sdk.console import Console
from app_trainer_sdk.environment import check_environment
from app_trainer_sdk.errors import ExitCode, TrainerError
from app_trainer_sdk.files import read_json, remove_tree, write_atomic, write_json
from app_trainer_sdk.job import check_job
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.pilot_page import pilot_page
from app_trainer_sdk.pilot_verdict import estimate, verdict
from app_trainer_sdk.planning.fit import Foresight, cards_to_plan_for
from app_trainer_sdk.redaction import guard
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.run import job_parser, require_gpu
from app_trainer_sdk.supervisor import Supervisor
from app_trainer_sdk.transfers.hosts import check_hosts

PROGRAM = (sys.executable, "-m", "app_trainer_sdk.training.pilot")


def main(arguments: Sequence[str] | None = None) -> int:
    """Pilot a job: 0 for go, 70 for no-go, or the code of what stopped it."""
    parser = job_parser("app-trainer pilot", "Measure one complete pass of a job's operations.")
    chosen = parser.parse_args(arguments)
    require_gpu(chosen.require_gpu)
    console = Console(quiet=chosen.quiet)
    return int(pilot_job(chosen.job, chosen.job_dir, console=console, ranks=chosen.ranks, gpu=chosen.gpu))


def pilot_job(
    job_file: Path | str, directory: Path, *, console: Console, ranks: int = 1, gpu: str = ""
) -> ExitCode:
    """Pilot a job in ``directory/pilot``, where ``pilot.md`` and ``pilot.json`` lie afterwards.

    Args:
        job_file: the job document, or its URL.
        directory: the job's directory; only its folder ``pilot`` is touched, and begun anew.
        console: what a person sees.
        ranks: processes that train together.
        gpu: as for a run.
    """
    try:
        guard()
        check_environment()
        job = given_job(job_file).kept_here()
        guard(job.document())
        trainer = find_trainer(job.trainer)
        check_job(job, trainer)
        check_hosts(job)
        layout = JobDirectory(JobDirectory(directory.resolve()).pilot.parent)
        make_folder(layout.root)
        with alone_in(layout.root):
            for leftover in layout.root.iterdir():
                remove_tree(leftover) if leftover.is_dir() else leftover.unlink()
            supervisor = Supervisor(
                job,
                layout,
                console,
                NoSink(),
                ranks=ranks,
                program=PROGRAM,
                foresight=Foresight(cards_to_plan_for(gpu)),
            )
            code = supervisor.run()
            return code if code else _tell(layout, console)
    except TrainerError as error:
        console.lines([f"error: {error}"])
        return error.code


def judged(measured: Mapping[str, Any]) -> dict[str, Any]:
    """The pilot's document: what was measured, what the run would take, and the verdict."""
    told = {**measured, "estimate": estimate(measured)}
    return {**told, **verdict(told)}


def _tell(layout: JobDirectory, console: Console) -> ExitCode:
    document = judged(read_json(layout.result)["pilot"])
    write_json(layout.root / JobDirectory(layout.root).pilot.name, document)
    page = pilot_page(document)
    write_atomic(layout.root / "pilot.md", page.encode())
    console.lines(page.splitlines())
    return ExitCode.SUCCEEDED if document["go"] else ExitCode.INTERNAL_ERROR


if __name__ == "__main__":
    sys.exit(main())
