"""Owns how an ending is told: one code, one failure object, the same in every file and event.

Torch-free: the supervisor writes an outcome for a rank that could not. This file must not know who is told.
"""

from __future__ import annotations

import traceback
from typing import Any

from app_trainer_sdk.errors import BadJob, ExitCode, StopRequested, TrainerError, is_disk_full, origins, text_of
from app_trainer_sdk.redaction import redact, redacted

MESSAGE_CHARACTERS = 500
TRACEBACK_CHARACTERS = 1500

STATUSES = {ExitCode.SUCCEEDED: "succeeded", ExitCode.CANCELED: "canceled"}
#: CUDA, cuBLAS, cuDNN, HIP and its libraries: those that have no class for it say it in the text.
GPU_MEMORY_WORDS = (
    "out of memory", "cublas_status_alloc_failed", "cudnn_status_alloc_failed", "device_allocation_failed",
    "hipblas_status_alloc_failed", "rocblas_status_memory_error", "hiperroroutofmemory",
)  # fmt: skip
HOST_MEMORY_WORDS = ("defaultcpuallocator", "cannot allocate memory")
#: The device or the way to it failed, or ranks waited for each other in vain. Not among them: an illegal access
#: or an assertion on the device, which are a program's mistakes, and a peer that has ended.
GPU_FAULT_WORDS = (
    "nvrm: xid", "uncorrectable ecc error", "uncorrectable nvlink error", "ecc uncorrectable",
    "hiperroreccnotcorrectable", "hardware stack error", "fallen off the bus", "gpu is lost",
    "hw exception by gpu node", "watchdog caught collective operation timeout",
    "nccl operations have failed or timed out", "timeout at nccl work", "for recv operation to complete",
    "for send operation to complete",
)  # fmt: skip
#: Origin and retry of the endings that somebody asked for.
STOPS = {
    ExitCode.INTERRUPTED: ("system", "resume"), ExitCode.DEADLINE: ("user", "resume with more time"),
    ExitCode.CANCELED: ("user", "no"), ExitCode.PEER_FAILED: ("system", "yes"),
    ExitCode.FENCED: ("system", "never this attempt"),
}  # fmt: skip
#: Endings that are no failure of the job: another attempt goes on, or (fenced) does so already.
INTERRUPTIONS = frozenset({ExitCode.INTERRUPTED, ExitCode.DEADLINE, ExitCode.FENCED})


def status_of(code: ExitCode) -> str:
    """``succeeded``, ``interrupted``, ``canceled`` or ``failed``."""
    return "interrupted" if code in INTERRUPTIONS else STATUSES.get(code, "failed")


def code_of(error: BaseException) -> ExitCode:
    """The exit code an exception means."""
    if isinstance(error, StopRequested | TrainerError):
        return error.code
    if is_disk_full(error):
        return ExitCode.DISK_FULL
    memory = memory_code(error)
    if memory is None and any(says_gpu_fault(text_of(each)) for each in origins(error)):
        return ExitCode.GPU_FAULT
    return memory or ExitCode.INTERNAL_ERROR


def memory_code(error: BaseException) -> ExitCode | None:
    """Whose memory ran out, if that is what an error or anything it came from says."""
    return next(filter(None, map(_memory_code, origins(error))), None)


def says_gpu_fault(text: str) -> bool:
    """Whether a text of a framework or a driver says that an accelerator failed, or a collective timed out."""
    lower = text.lower()
    return any(words in lower for words in GPU_FAULT_WORDS)


def _memory_code(error: BaseException) -> ExitCode | None:
    """Whose memory ran out; frameworks say it in their own words."""
    text = text_of(error).lower()
    if isinstance(error, MemoryError) or any(word in text for word in HOST_MEMORY_WORDS):
        return ExitCode.HOST_OUT_OF_MEMORY
    if type(error).__name__ == "OutOfMemoryError":
        return ExitCode.GPU_OUT_OF_MEMORY
    if isinstance(error, RuntimeError) and any(word in text for word in GPU_MEMORY_WORDS):
        return ExitCode.GPU_OUT_OF_MEMORY
    return None


def _manners(code: ExitCode) -> tuple[str, str]:
    """Origin and retry of a code: its error class says so, or the table of stops."""
    if code in STOPS:
        return STOPS[code]
    kinds: list[type[TrainerError]] = [*TrainerError.__subclasses__(), TrainerError]
    kind = next((each for each in kinds if each.code is code), TrainerError)
    return kind.origin, kind.retry


def describe_failure(error: BaseException, *, phase: str = "", step: int | None = None) -> dict[str, Any]:
    """The failure object of CONTRACT: code, origin, retry, message, where, and the traceback's tail."""
    code = code_of(error)
    origin, retry = _manners(code)
    failure: dict[str, Any] = {
        "code": int(code), "name": code.name.lower(), "origin": origin, "retry": retry,
        "message": shortened(redact(_said(error))) or type(error).__name__,
        "phase": phase, "step": step, "exception": type(error).__name__,
    }  # fmt: skip
    if isinstance(error, BadJob):
        failure["problems"] = [redacted(vars(problem)) for problem in error.problems]
    if not isinstance(error, StopRequested | TrainerError):
        lines = traceback.format_exception(error)
        text = "".join(lines).encode(errors="backslashreplace").decode()
        failure["traceback"] = redact(text)[-TRACEBACK_CHARACTERS:]
    return failure


def _said(error: BaseException) -> str:
    """What an exception says; where that is a bare key or status, by its kind."""
    text = text_of(error)
    return f"{type(error).__name__}: {text}" if text and isinstance(error, KeyError | SystemExit) else text


def shortened(text: str) -> str:
    """A message of at most ``MESSAGE_CHARACTERS``, cut between two words."""
    if len(text) <= MESSAGE_CHARACTERS:
        return text
    head = text[: MESSAGE_CHARACTERS - 1]
    return (head.rsplit(maxsplit=1)[0] if len(head.split()) > 1 else head[:-1]) + " …"


def outcome_document(code: ExitCode, **facts: Any) -> dict[str, Any]:
    """An ending as it is written to ``outcome-<rank>.json`` and ``result.json``."""
    return {"status": status_of(code), "exit_code": int(code), "name": code.name.lower(), **facts}
