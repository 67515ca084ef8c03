"""Owns how an ending is told: one code, one failure object, the same in every file and event.

Torch-free: the supervisor writes an outcome for a rank that could not.
"""

from __future__ import annotations

import traceback
from typing import Any

from app_trainer_sdk.errors import BadJob, DiskFull, ExitCode, StopRequested, TrainerError, is_disk_full

MESSAGE_CHARACTERS = 500
TRACEBACK_CHARACTERS = 1500

STATUSES = {ExitCode.SUCCEEDED: "succeeded", ExitCode.CANCELED: "canceled"}
#: Endings that are no failure: another attempt goes on from the checkpoint.
INTERRUPTIONS = frozenset({ExitCode.INTERRUPTED, ExitCode.DEADLINE})


def status_of(code: ExitCode) -> str:
    """``succeeded``, ``interrupted``, ``canceled`` or ``failed``."""
    return "interrupted" if code in INTERRUPTIONS else STATUSES.get(code, "failed")


def code_of(error: BaseException) -> ExitCode:
    """The exit code an exception means."""
    if isinstance(error, StopRequested | TrainerError):
        return error.code
    if is_disk_full(error):
        return ExitCode.DISK_FULL
    if isinstance(error, MemoryError):
        return ExitCode.HOST_OUT_OF_MEMORY
    if "out of memory" in str(error).lower() and type(error).__name__ in ("OutOfMemoryError", "RuntimeError"):
        return ExitCode.GPU_OUT_OF_MEMORY
    return ExitCode.INTERNAL_ERROR


def describe_failure(error: BaseException, *, phase: str = "", step: int | None = None) -> dict[str, Any]:
    """The failure object of CONTRACT: code, origin, retry, message, where, and the traceback's tail."""
    code = code_of(error)
    known: TrainerError | None = error if isinstance(error, TrainerError) else None
    if known is None and code is ExitCode.DISK_FULL:
        known = DiskFull(str(error))
    failure: dict[str, Any] = {
        "code": int(code), "name": code.name.lower(), "origin": known.origin if known else "system",
        "retry": known.retry if known else "once", "message": str(error)[:MESSAGE_CHARACTERS],
        "phase": phase, "step": step, "exception": type(error).__name__,
    }  # fmt: skip
    if isinstance(error, BadJob):
        failure["problems"] = [vars(problem) for problem in error.problems]
    if known is None and not isinstance(error, StopRequested):
        lines = traceback.format_exception(error)
        failure["traceback"] = "".join(lines)[-TRACEBACK_CHARACTERS:]
    return failure


def outcome_document(code: ExitCode, **facts: Any) -> dict[str, Any]:
    """An ending as it is written to ``outcome-<rank>.json`` and ``result.json``."""
    return {"status": status_of(code), "exit_code": int(code), "name": code.name.lower(), **facts}
