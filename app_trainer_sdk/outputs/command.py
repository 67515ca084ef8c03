"""Owns the command ``app-trainer upload DIR``: a job that ended with 74 is ended well, once all is confirmed.

It is another attempt, whose only work is the upload. It must not know how a run goes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from app_trainer_sdk.arguments import Parser
from app_trainer_sdk.attempt.admission import answer_if_finished
from app_trainer_sdk.claim import alone_in
from app_trainer_sdk.console import Console
from app_trainer_sdk.environment import check_environment
from app_trainer_sdk.errors import BadJob, ExitCode, TrainerError
from app_trainer_sdk.job import Job, begun_job, load_job
from app_trainer_sdk.outputs.made import made_before
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.redaction import QUERY_DIGEST, guard, redact, redact_logs
from app_trainer_sdk.supervisor import Supervisor
from app_trainer_sdk.transfers.hosts import check_hosts


def main(arguments: Sequence[str] | None = None) -> int:
    """Upload what a finished job could not; the exit code is the job's."""
    chosen = _parser().parse_args(arguments)
    guard()
    redact_logs()
    try:
        check_environment()
        return int(upload_job(chosen.directory, chosen.job, Console()))
    except TrainerError as error:
        sys.stderr.write(f"upload: {redact(str(error))}\n")
        return int(error.code)


def upload_job(directory: Path, job_file: Path | None, console: Console) -> ExitCode:
    """End a job well whose artifacts are made and not all confirmed.

    Raises:
        BadJob: there is nothing to upload, or not where to.
    """
    job = _job(begun_job(directory), job_file)
    layout = JobDirectory(directory.resolve())
    guard(job.document())
    with alone_in(layout.root):
        if (code := answer_if_finished(job, layout, console)) is not None:
            return code
        check_hosts(job, only_outputs=True)
        return Supervisor(job, layout, console, made=made_before(layout)).run()


def _job(there: Job, job_file: Path | None) -> Job:
    job = (load_job(job_file) if job_file is not None else there).model_copy(
        update={"job_id": there.identifier()}
    )
    places = [job.outputs.grant_url, *(job.outputs.put or {}).values()]
    if not any(places):
        raise BadJob(
            "a job without a place to upload to", expected="outputs with grant_url or put", setting="--job"
        )
    if job.callbacks is not None:
        places.append(job.callbacks.url)
    if any(f"?{QUERY_DIGEST}=" in each for each in places if each):
        raise BadJob(
            "the query of a URL is a secret and not kept on the disk", expected="the whole job",
            setting="--job",
        )  # fmt: skip
    return job


def _parser() -> Parser:
    parser = Parser(
        prog="app-trainer upload", description="Upload what a finished job could not, and end it well."
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="the job's directory")
    parser.add_argument("--job", type=Path, help="the job document, for its whole URLs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
