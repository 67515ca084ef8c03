"""Every ending has one code and one failure object."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from app_trainer_sdk.errors import (
    BadJob,
    DependencyUnavailable,
    Diverged,
    ExitCode,
    GpuOutOfMemory,
    Problem,
    StopRequested,
    TrainerError,
)
from app_trainer_sdk.outcome import code_of, describe_failure, outcome_document, status_of


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own."""


def chained(outer: Exception, inner: Exception) -> Exception:
    """``outer``, raised from ``inner``."""
    outer.__cause__ = inner
    return outer


def test_a_long_message_ends_with_a_whole_word():
    """And says that there was more."""
    whole, cut = (describe_failure(BadJob(word * 100))["message"] for word in ("word ", "longer "))

    assert (whole, len(cut) <= 500) == ("word " * 100, True)
    assert cut.endswith("longer …")


class SpeechlessError(Exception):
    """One whose own text fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError(2, "No such file or directory", "caf\udce9.png"), r"caf\udce9.png"),
        (SpeechlessError(), "SpeechlessError"),
        (KeyError("weights"), "KeyError: 'weights'"),
        (SystemExit(0), "SystemExit: 0"),
    ],
)
def test_an_ending_is_told_whatever_it_came_from(error: BaseException, message: str):
    """A name that is no UTF-8, an exception without a text, a bare key: in characters that any file takes."""
    failure = describe_failure(error, phase="train")

    assert message in failure["message"]
    assert json.dumps(failure, ensure_ascii=False).encode()
    assert code_of(error) == ExitCode.INTERNAL_ERROR


def test_a_failure_says_no_secret():
    """Whatever an exception's text, its cause and its traceback hold of a presigned URL."""
    try:
        try:
            raise OSError("PUT https://bucket/key?X-Amz-Signature=planted1")
        except OSError as error:
            raise RuntimeError("GET https://me:planted2@h/rows?sig=planted3 failed") from error
    except RuntimeError as error:
        failure = describe_failure(error, phase="train")

    assert "GET https://h/rows?[redacted] failed" in failure["message"]
    assert "PUT https://bucket/key?[redacted]" in failure["traceback"]
    assert "planted" not in str(failure)


def test_statuses():
    """Interruptions are no failures: another attempt goes on."""
    told = {code: status_of(code) for code in ExitCode}

    assert told.pop(ExitCode.SUCCEEDED) == "succeeded"
    assert told.pop(ExitCode.CANCELED) == "canceled"
    assert told.pop(ExitCode.INTERRUPTED) == told.pop(ExitCode.DEADLINE) == "interrupted"
    assert told.pop(ExitCode.FENCED) == "interrupted"
    assert set(told.values()) == {"failed"}


@pytest.mark.parametrize(
    ("error", "code", "origin", "retry"),
    [
        (BadJob("x"), 64, "user", "no"),
        (DependencyUnavailable("x"), 69, "system", "later"),
        (TrainerError("x"), 70, "system", "once"),
        (ValueError("x"), 70, "system", "once"),
        (MemoryError(), 71, "resource", "bigger host"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
            71,
            "resource",
            "bigger host",
        ),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 71, "resource", "bigger host"),
        (OSError(errno.ENOSPC, "No space left on device"), 73, "resource", "bigger disk"),
        (chained(RuntimeError("saving failed"), OSError(errno.EDQUOT, "quota")), 73, "resource", "bigger disk"),
        (OutOfMemoryError("CUDA out of memory. Tried to allocate"), 79, "resource", "bigger GPU"),
        (RuntimeError("CUDA error: out of memory"), 79, "resource", "bigger GPU"),
        (RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED"), 79, "resource", "bigger GPU"),
        (chained(ValueError("the step failed"), OutOfMemoryError("x")), 79, "resource", "bigger GPU"),
        (GpuOutOfMemory("x"), 79, "resource", "bigger GPU"),
        (Diverged("x"), 82, "user", "no"),
        (StopRequested("interrupted"), 75, "system", "resume"),
        (StopRequested("deadline"), 77, "user", "resume with more time"),
        (StopRequested("canceled"), 81, "user", "no"),
        (StopRequested("peer"), 72, "system", "yes"),
    ],
)
def test_code_origin_and_retry_are_those_of_the_contract(
    error: BaseException, code: int, origin: str, retry: str
):
    """Whoever raised it and however deep the cause lies."""
    failure = describe_failure(error)

    assert code == code_of(error) == failure["code"]
    assert (origin, retry, ExitCode(code).name.lower()) == (
        failure["origin"],
        failure["retry"],
        failure["name"],
    )


def test_an_error_that_came_from_itself_ends():
    """A circle of causes is walked once."""
    error = ValueError("x")
    error.__cause__ = other = RuntimeError("y")
    other.__cause__ = error

    assert code_of(error) is ExitCode.INTERNAL_ERROR


def test_the_failure_says_where_and_how():
    """Phase and step; a traceback only for what nobody raised on purpose, its tail, and JSON all of it."""
    failure = describe_failure(chained(ValueError("x" * 1900), KeyError("k")), phase="train", step=7)

    assert (
        failure["phase"],
        failure["step"],
        failure["exception"],
        len(failure["message"]),
    ) == ("train", 7, "ValueError", 500)
    assert len(failure["traceback"]) == 1500
    assert "traceback" not in describe_failure(TrainerError("x"))
    assert "traceback" not in describe_failure(StopRequested("interrupted"))
    assert describe_failure(MemoryError())["message"] == "MemoryError"
    json.dumps(failure)


def test_a_bad_job_lists_its_problems():
    """Each with pointer, found, expected and hint."""
    failure = describe_failure(BadJob("the job:", problems=[Problem("/a", "1", "2", "hint")]))

    assert failure["problems"] == [{"pointer": "/a", "found": "1", "expected": "2", "hint": "hint"}]


def test_an_outcome_is_the_code_in_words_and_the_facts():
    """The same in the rank's file and in result.json."""
    expected: dict[str, Any] = {"status": "failed", "exit_code": 82, "name": "diverged", "step": 3}

    assert expected == outcome_document(ExitCode.DIVERGED, step=3)
