"""Owns sending what earlier starts could not: the command ``app-trainer events flush``, and so does a start.

Nobody runs meanwhile, so nothing in an answer is obeyed. It must not know how events are made.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from app_trainer_sdk.arguments import Parser
from app_trainer_sdk.callbacks.answers import Mode
from app_trainer_sdk.callbacks.delivery import DeliveryRecord
from app_trainer_sdk.callbacks.http_sink import HttpSink
from app_trainer_sdk.errors import BadJob, ExitCode, TrainerError
from app_trainer_sdk.job import Callbacks, begun_job, load_job, read_job
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.redaction import QUERY_DIGEST, guard, redact


def deliver_backlog(
    callbacks: Callbacks | None, layout: JobDirectory, seconds: float, *, everything: bool = False
) -> tuple[int, int, int]:
    """Send what nobody heard, byte for byte; ``everything`` also of attempts that had no receiver.

    Returns:
        how many events were waiting, how many of them were heard, and how many wait still; the rest was refused
        or fenced.
    """
    record = DeliveryRecord(layout)
    backlog, before = record.backlog(everything=everything), record.heard()
    if callbacks is None or not backlog:
        return len(backlog), 0, len(backlog)
    mode: Mode = callbacks.mode
    HttpSink(callbacks.url, mode=mode, record=record, backlog=backlog).close(seconds)
    return len(backlog), record.heard() - before, len(record.backlog(everything=everything))


def main(arguments: Sequence[str] | None = None) -> int:
    """Send a directory's events: 0 when none is left, 69 when some are."""
    chosen = _parser().parse_args(arguments)
    try:
        layout = JobDirectory(chosen.directory)
        callbacks = _callbacks(layout, chosen.job, chosen.url, chosen.mode)
        guard(callbacks.model_dump())
        waiting, heard, left = deliver_backlog(callbacks, layout, chosen.seconds, everything=True)
    except TrainerError as error:
        sys.stderr.write(f"events: {redact(str(error))}\n")
        return int(error.code)
    others = waiting - heard - left
    refused = f", {others} not wanted by the receiver" if others else ""
    sys.stdout.write(f"{heard} of {waiting} events delivered{refused}\n")
    return int(ExitCode.DEPENDENCY_UNAVAILABLE) if left else 0


def _callbacks(layout: JobDirectory, job: Path | None, url: str | None, mode: Mode | None) -> Callbacks:
    """Where to, by the option, the job file, or the directory's job where that says all of it."""
    begun = begun_job(layout.root)
    there = begun if job is None else load_job(job)
    known = there.callbacks
    if url is not None:
        asked = {"url": url, "mode": known.mode if known else "notify"}
        known = read_job({"trainer": there.trainer, "model": there.model, "callbacks": asked}).callbacks
    if known is None:
        raise BadJob("a job without callbacks", expected="a URL to send to", setting="--url or --job")
    if f"?{QUERY_DIGEST}=" in known.url:
        raise BadJob(
            "the query of the callback URL is a secret and not kept on the disk", expected="the whole URL",
            setting="--url or --job",
        )  # fmt: skip
    return known if mode is None else known.model_copy(update={"mode": mode})


def _parser() -> Parser:
    parser = Parser(prog="app-trainer events", description="Events of a job that lie on the disk.")
    verbs = parser.add_subparsers(required=True, metavar="flush")
    flush = verbs.add_parser("flush", help="send what the receiver has not heard")
    flush.add_argument("directory", type=Path, metavar="DIR", help="the job's directory")
    flush.add_argument("--job", type=Path, help="the job document, for its callback URL")
    flush.add_argument("--url", help="where to send, instead")
    flush.add_argument("--mode", choices=("notify", "control"), help="how the receiver answers")
    flush.add_argument("--seconds", type=float, default=60.0, help="how long to try (60)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
