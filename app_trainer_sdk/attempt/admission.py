"""Owns what becomes of a job and a directory: another attempt, an end that is told again, or nothing at all.

It must not know what an attempt does.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from app_trainer_sdk.attempt.ending import NOTIFY_SECONDS
from app_trainer_sdk.attempt.given import given_job
from app_trainer_sdk.callbacks.choose import asked_trackers
from app_trainer_sdk.callbacks.flush import deliver_backlog
from app_trainer_sdk.changes import check_allowed
from app_trainer_sdk.claim import alone_in, free_if_untrained, is_finished, make_folder, under_its_name
from app_trainer_sdk.console import Console
from app_trainer_sdk.environment import check_environment
from app_trainer_sdk.errors import ExitCode, TrainerError
from app_trainer_sdk.events import EVENTS, Event, read_terminal
from app_trainer_sdk.files import read_json
from app_trainer_sdk.job import Job, check_job
from app_trainer_sdk.nodes import help_out, place_from_environment
from app_trainer_sdk.outcome import status_of
from app_trainer_sdk.outputs.made import only_unsent
from app_trainer_sdk.paths import PREFIX, JobDirectory, number_from_environment
from app_trainer_sdk.planning.fit import Foresight, cards_to_plan_for
from app_trainer_sdk.redaction import guard
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.signals import WISHES
from app_trainer_sdk.supervisor import Supervisor
from app_trainer_sdk.transfers.hosts import check_hosts


def run_job(
    job_file: Path | str, directory: Path, *, console: Console | None = None, ranks: int = 1,
    allow_changes: Sequence[str] = (), gpu: str = "", pilot: Path | None = None,
) -> ExitCode:  # fmt: skip
    """Run a job, or go on with it, in ``directory``; on a finished one say so and change nothing.

    Args:
        job_file: the job document, or its URL.
        directory: the job's directory.
        console: what a person sees.
        ranks: processes that train together.
        allow_changes: fields of the identity in which a resume may differ from its checkpoint.
        gpu: the card to plan memory for; empty for those that are there, ``none`` for no plan.
        pilot: a ``pilot.json`` to learn from, instead of the one in the directory.

    Returns:
        the code the process should exit with.
    """
    console = console or Console()
    guard()
    try:
        check_environment()
        job = given_job(job_file)
        guard(job.document())
        trainer = find_trainer(job.trainer)
        check_job(job, trainer)
        check_hosts(job)
        check_allowed(allow_changes, trainer)
        asked_trackers()
        layout = JobDirectory(directory.resolve())
        make_folder(layout.root)
        place = place_from_environment()
        if place.node:
            return help_out(layout, place, ranks, console)
        foresight = Foresight(cards_to_plan_for(gpu), pilot)
        with alone_in(layout.root):
            return _go_on(job, layout, console, ranks, allow_changes, foresight, place.nodes)
    except TrainerError as error:
        console.lines([f"error: {error}"])
        return error.code


def _go_on(
    job: Job, layout: JobDirectory, console: Console, ranks: int, allow_changes: Sequence[str],
    foresight: Foresight, nodes: int,
) -> ExitCode:  # fmt: skip
    free_if_untrained(layout, job)
    job = under_its_name(layout, job, may_change=bool(allow_changes))
    if (code := answer_if_finished(job, layout, console)) is not None:
        return code
    if (ended := read_terminal(layout.attempt(layout.next_attempt()))) is not None:
        return _ended_before(ended, job, layout, console)
    if (made := only_unsent(layout, job)) is not None:
        console.lines([f"{job.identifier()} is trained and its artifacts are whole: they only have to be sent"])
        return Supervisor(job, layout, console, made=made).run()
    return Supervisor(
        job, layout, console, ranks=ranks, nodes=nodes, allow_changes=allow_changes, foresight=foresight
    ).run()


def answer_if_finished(job: Job, layout: JobDirectory, console: Console) -> ExitCode | None:
    """Say that a job is finished, and to the control plane what it has not heard; None for one that is not."""
    if not is_finished(layout, job):
        return None
    if _is_untold(layout):
        console.lines([f"{job.identifier()} is complete; its end is told now"])
        return Supervisor(job, layout, console).tell_again()
    console.lines([f"{job.identifier()} is already complete: see {layout.report}; nothing was changed"])
    console.lines(_missing_outputs(layout))
    _tell_the_rest(job, layout, console)
    return ExitCode.SUCCEEDED


def _missing_outputs(layout: JobDirectory) -> list[str]:
    """What a finished job made and nobody stored, and that is not here any more."""
    made = read_json(layout.result).get("outputs") or ()
    gone = [
        each["path"] for each in made if not each.get("stored") and not (layout.root / each["path"]).exists()
    ]
    again = f"without {layout.result} the next start makes it again"
    return [f"warning: {path} is not there any more; {again}" for path in gone]


def _is_untold(layout: JobDirectory) -> bool:
    """Whether a supervisor was killed between the result of a finished job and the event that tells it."""
    finished = int(read_json(layout.result).get("attempt", 0))
    folders = [each for each in (layout.root / "attempts").glob("*") if each.name.isdecimal()]
    later = [each for each in folders if int(each.name) >= finished]
    began = (layout.attempt(finished) / EVENTS).exists()
    return began and not any(read_terminal(each) for each in later)


def _ended_before(ended: Event, job: Job, layout: JobDirectory, console: Console) -> ExitCode:
    """The attempt that was asked for told its end already: tell it again, byte for byte, and end like it."""
    code, attempt = ExitCode(ended.document["code"]), ended.document["attempt"]
    how = f"has ended before: {status_of(code)} (exit code {int(code)})"
    another = f"another attempt has another number: {PREFIX}ATTEMPT={attempt + 1}"
    console.lines([f"attempt {attempt} of {job.identifier()} {how}", another])
    _tell_the_rest(job, layout, console)
    return code


def _tell_the_rest(job: Job, layout: JobDirectory, console: Console) -> None:
    """Send what earlier starts could not; who waits for that may interrupt it."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WISHES)  # held back until a supervisor listens, which none does
    seconds = number_from_environment("UPLOAD_WAIT_SECONDS", NOTIFY_SECONDS)
    _, _, left = deliver_backlog(job.callbacks, layout, seconds)
    if left and job.callbacks is not None:
        console.lines([f"{left} events were not delivered; they are kept in {layout.root / 'attempts'}"])
