"""Owns the command ``run``: arguments in, exit code out. It must not know how a job is run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from app_trainer_sdk.arguments import Parser, path_or_url, rank_count
from app_trainer_sdk.attempt.admission import run_job
from app_trainer_sdk.attempt.given import JOB_URL
from app_trainer_sdk.changes import OPTION
from app_trainer_sdk.console import console_from_environment
from app_trainer_sdk.logs import settle_logs
from app_trainer_sdk.paths import PREFIX
from app_trainer_sdk.preflight.facts import REQUIRE_GPU


def main(arguments: Sequence[str] | None = None) -> int:
    """Run or resume a job."""
    parser = job_parser("app-trainer run", "Run a job, or go on with it.")
    parser.add_argument(
        OPTION, action="append", default=[], metavar="FIELD", dest="allow_changes",
        help="go on from a checkpoint though FIELD differs, such as threads or settings/learning_rate; "
        "may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--pilot",
        type=Path,
        metavar="FILE",
        help="pilot.json whose numbers are used; that in the job's directory",
    )
    chosen = parser.parse_args(arguments)
    settle_logs()
    console = console_from_environment(quiet=chosen.quiet)
    require_gpu(chosen.require_gpu)
    code = run_job(
        chosen.job, chosen.job_dir, console=console, ranks=chosen.ranks, allow_changes=chosen.allow_changes,
        gpu=chosen.gpu, pilot=chosen.pilot,
    )  # fmt: skip
    return int(code)


def job_parser(program: str, description: str) -> Parser:
    """The options of every command that takes a job and works in its directory."""
    parser = Parser(prog=program, description=description)
    job, url = os.environ.get(PREFIX + "JOB_FILE"), os.environ.get(JOB_URL)
    said = job or (f"what {JOB_URL} leads to" if url else "/run/trainer/job.json")
    directory = os.environ.get(PREFIX + "JOB_DIR") or "/job"
    parser.add_argument(
        "--job", type=path_or_url, default=job or url or said, metavar="PATH or URL",
        help=f"job document, JSON or YAML ({said})",
    )  # fmt: skip
    parser.add_argument(
        "--job-dir", type=Path, default=Path(directory), help=f"the job's directory ({directory})"
    )
    parser.add_argument(
        "--ranks", type=rank_count, default=os.environ.get(PREFIX + "RANKS") or "1",
        help="processes that train together, one for each GPU, or sharing the processors (1)",
    )  # fmt: skip
    parser.add_argument(
        "--gpu", default=os.environ.get(PREFIX + "GPU", ""), metavar="CARD",
        help="plan memory for this card, such as H200 or 24GiB, instead of the one that is there; none: for no "
        "card",
    )  # fmt: skip
    parser.add_argument(
        "--require-gpu", action="store_true", help="end with 78 where the processors would train"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing on the terminal but errors")
    return parser


def require_gpu(asked: bool) -> None:
    """Remember the wish where the preflight of this process looks for it."""
    if asked:
        os.environ[REQUIRE_GPU] = "1"


if __name__ == "__main__":
    sys.exit(main())
