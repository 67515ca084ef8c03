"""Owns the end of an attempt: its result, report and manifest, the last event, and what a person reads last.

Whatever cannot be written, the end is told and has one exit code. It must not know how ranks ended.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from app_trainer_sdk import __version__
from app_trainer_sdk.attempt.desk import Desk
from app_trainer_sdk.callbacks.last_words import leave_last_words
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.files import sha256_file, write_json
from app_trainer_sdk.job import Job
from app_trainer_sdk.outcome import describe_failure, outcome_document, status_of
from app_trainer_sdk.paths import JobDirectory, number_from_environment
from app_trainer_sdk.quantities import seconds_text
from app_trainer_sdk.ranks import LOG_TAIL_LINES
from app_trainer_sdk.redaction import redacted
from app_trainer_sdk.report import write_report
from app_trainer_sdk.time_split import time_split

RESULT_SCHEMA = "app.trainer.result/v1"
#: How long a run that is done waits until its end is heard, by the mode of its callbacks.
CONTROL_SECONDS, NOTIFY_SECONDS = 900.0, 15.0
#: After so long a person is told what is waited for.
QUIET_SECONDS = 2.0


def end_attempt(desk: Desk, outcome: dict[str, Any]) -> ExitCode:
    """Keep the result and tell it; the code to exit with."""
    result = _result(desk, outcome)
    unkept = _keep_result(desk, result)
    if unkept is not None and outcome["status"] == "succeeded":
        # Work that nobody can find is not done: the artifacts are kept and the next start ends the job.
        failure = describe_failure(unkept, phase="result", step=desk.narrator.step)
        outcome = outcome_document(ExitCode(failure["code"]), failure=failure)
        result = _result(desk, outcome)
    return tell_end(desk, result)


def tell_end(desk: Desk, result: Mapping[str, Any]) -> ExitCode:
    """Say the last event of a result, wait until it is heard, and show a person how it ended."""
    code = ExitCode(result["exit_code"])
    kinds = {"succeeded": "job.succeeded", "canceled": "job.canceled", "interrupted": "job.interrupted"}
    outputs = [each for each in result.get("outputs") or () if each.get("stored") is not False]
    stored = {"stored_bytes": sum(result["stored"].values())} if "stored" in result else {}
    size = sum(each["bytes"] for each in outputs)
    told = {"count": len(outputs), "bytes": size, **stored, **_manifest_facts(desk)}
    kind = kinds.get(str(result["status"]), "job.failed")
    said = desk.narrator.say(
        kind, status=result["status"], code=int(code), outputs=told, failure=result.get("failure"),
        **desk.narrator.finished(code),
    )  # fmt: skip
    if said.terminal:
        leave_last_words(said)
    if not _deliver(desk):
        desk.console.lines([f"not every event was delivered; they are kept in {desk.folder}"])
    _keep_stop(desk, result)
    desk.console.lines(_last_words(result, desk.layout))
    return code


def _deliver(desk: Desk) -> bool:
    """Send what is not heard yet; True when nothing is left. A person who waits is told why."""
    seconds = desk.stops.seconds_to_tell(delivery_seconds(desk.job))
    lines = [f"waiting up to {seconds_text(seconds)} until the end is heard; a signal ends that"]
    told = threading.Timer(QUIET_SECONDS, desk.console.lines, [lines])
    told.daemon = True
    told.start()
    try:
        with desk.stops.spending("terminal"):
            return desk.sink.close(seconds)
    finally:
        told.cancel()


def delivery_seconds(job: Job) -> float:
    """How long a run that is done waits until its end is heard.

    A control plane counts on it and may be away for minutes; a mere webhook is worth no idle card.
    """
    controlled = job.callbacks is not None and job.callbacks.mode == "control"
    return number_from_environment("UPLOAD_WAIT_SECONDS", CONTROL_SECONDS if controlled else NOTIFY_SECONDS)


def _manifest_facts(desk: Desk) -> dict[str, str]:
    """The digest of what the run says of itself, where that could be written."""
    with contextlib.suppress(OSError):
        return {"manifest_sha256": sha256_file(desk.layout.manifest)}
    return {}


def _result(desk: Desk, outcome: Mapping[str, Any]) -> dict[str, Any]:
    head = {"schema": RESULT_SCHEMA, "job_id": desk.job.identifier(), "attempt": desk.attempt}
    changed = desk.narrator.changed
    told: dict[str, Any] = {} if changed is None else {"changed": changed}
    own, of_rank = desk.activities.seconds(), outcome.get("activities") or {}
    split = time_split(own, own.pop("ranks", 0.0), of_rank)
    ending = {name: value for name, value in outcome.items() if name != "activities"}
    result: dict[str, Any] = redacted({**head, "sdk": __version__, **told, **ending, "time_split": split})
    return result


def _keep_result(desk: Desk, result: Mapping[str, Any]) -> Exception | None:
    """Write the result and the report; a disk that takes neither must not keep the end from being told.

    Returns:
        what kept the result from being written.
    """
    try:
        write_json(desk.layout.result, result)
    except Exception as error:  # noqa: BLE001 - the exit code and the terminal event are still to come
        desk.console.lines([f"warning: the result is not kept: {error}"])
        return error
    keep_pages(desk, result)
    return None


def keep_pages(desk: Desk, result: Mapping[str, Any]) -> None:
    """Write report and manifest, as far as the disk takes them."""
    from app_trainer_sdk.manifest.gather import write_manifest  # its document takes long to load

    job = desk.job.document()
    for name, write in (("report", write_report), ("manifest", partial(write_manifest, asked=job))):
        try:
            write(desk.layout, result)
        except Exception as error:  # noqa: BLE001 - the same; what both tell stands in other files too
            desk.console.lines([f"warning: the {name} is not kept: {error}"])


def _keep_stop(desk: Desk, result: Mapping[str, Any]) -> None:
    """Add to the result what the grace was spent on, now that the last of it is spent."""
    stop = desk.stops.document()
    if stop is not None:
        with contextlib.suppress(OSError):
            write_json(desk.layout.result, {**result, "stop": stop})


def _last_words(result: Mapping[str, Any], layout: JobDirectory) -> list[str]:
    lines = [
        f"{result['job_id']}: {status_of(ExitCode(result['exit_code']))} (exit code {result['exit_code']})"
    ]
    failure = result.get("failure")
    if failure:
        word = "error: " if result["status"] == "failed" else ""  # somebody's wish is none
        lines.append(f"{word}{failure['message']}")
        lines += [f"  {line}" for line in str(failure.get("traceback", "")).splitlines()[-LOG_TAIL_LINES:]]
    if result["exit_code"] == ExitCode.UPLOAD_FAILED:
        lines.append(f"the artifacts are kept; run it again to send them, or: app-trainer upload {layout.root}")
    if result["status"] == "interrupted" and result["exit_code"] != ExitCode.FENCED:
        lines.append("run the same command again to go on from the last checkpoint")
    seconds = sum((result.get("timings") or {}).values())
    lines.append(f"time in phases {seconds_text(seconds)}; report: {layout.report}")
    return lines
