"""Exit codes are pinned, messages have three parts, and a full disk is recognised wherever it hides."""

from __future__ import annotations

import errno
import pickle

import pytest

from app_trainer_sdk import errors
from app_trainer_sdk.errors import (
    BadJob,
    DiskFull,
    Diverged,
    ExitCode,
    Problem,
    StopRequested,
    TrainerError,
    did_you_mean,
    is_disk_full,
    json_pointer,
)

CODES = {
    "SUCCEEDED": 0, "BAD_JOB": 64, "BAD_DATA": 65, "INPUT_MISSING": 66, "DEPENDENCY_UNAVAILABLE": 69,
    "INTERNAL_ERROR": 70, "HOST_OUT_OF_MEMORY": 71, "PEER_FAILED": 72, "DISK_FULL": 73, "UPLOAD_FAILED": 74,
    "INTERRUPTED": 75, "FENCED": 76, "DEADLINE": 77, "HARDWARE_UNFIT": 78, "GPU_OUT_OF_MEMORY": 79,
    "GPU_FAULT": 80, "CANCELED": 81, "DIVERGED": 82,
}  # fmt: skip

ORIGINS = {
    "BadJob": ("user", "no"),
    "BadData": ("user", "no"),
    "InputMissing": ("user", "no"),
    "DependencyUnavailable": ("system", "later"),
    "InternalError": ("system", "once"),
    "HostOutOfMemory": ("resource", "bigger host"),
    "PeerFailed": ("system", "yes"),
    "DiskFull": ("resource", "bigger disk"),
    "UploadFailed": ("system", "upload only"),
    "Fenced": ("system", "never this attempt"),
    "HardwareUnfit": ("resource", "other machine"),
    "GpuOutOfMemory": ("resource", "bigger GPU"),
    "GpuFault": ("system", "other machine"),
    "Diverged": ("user", "no"),
}


def test_exit_codes_are_pinned():
    """Platforms branch on these numbers: none changes its meaning."""
    assert {code.name: code.value for code in ExitCode} == CODES


def _tree():
    """The classes of this file's tree; the conformance kit has one of its own besides."""
    return [each for each in TrainerError.__subclasses__() if each.__module__ == errors.__name__]


def test_each_error_has_a_code_of_its_own():
    """A class and its code carry the same name."""
    kinds = {each.__name__: each for each in _tree()}

    assert set(ORIGINS) == set(kinds)
    for name, kind in kinds.items():
        assert name.lower() == kind.code.name.replace("_", "").lower()
        assert ORIGINS[name] == (kind.origin, kind.retry)


@pytest.mark.parametrize(
    ("reason", "code"), [("interrupted", 75), ("deadline", 77), ("canceled", 81), ("peer", 72)]
)
def test_a_stop_has_the_code_of_its_reason(reason, code: int):
    """The same code with and without a checkpoint."""
    assert code == StopRequested(reason).code == StopRequested(reason, checkpoint=False).code


def test_a_stop_passes_through_except_exception():
    """A trainer that catches everything cannot swallow a stop."""
    assert not issubclass(StopRequested, Exception)


def test_the_tree_in_the_docstring_is_the_tree():
    """The picture at the top of the file names every class with its code."""
    for kind in _tree():
        line = next(line for line in errors.__doc__.splitlines() if f" {kind.__name__} " in line + " ")
        assert str(int(kind.code)) in line


def test_a_message_has_three_parts():
    """What was found, what was expected, which setting to change."""
    error = Diverged("5 losses in a row are nan", expected="finite losses", setting="learning_rate")

    assert str(error) == "5 losses in a row are nan; expected finite losses; change learning_rate"


def test_a_pointer_escapes_what_it_is_made_of():
    """RFC 6901: a name with a slash is one step."""

    assert json_pointer("outputs", "put", "a/~b", 0) == "/outputs/put/a~1~0b/0"
    assert json_pointer() == ""


def test_a_message_may_have_one_part():
    """Parts nobody knows are left out."""
    assert str(DiskFull("no space")) == "no space"


def test_a_bad_job_lists_every_problem():
    """One line for each problem, with its pointer."""
    problems = [Problem("/model", "'x'", "a model", "did you mean 'y'?"), Problem("", "3", "an object")]

    assert str(BadJob("the job cannot be used:", problems=problems)).splitlines() == [
        "the job cannot be used:",
        "  /model: found 'x'; expected a model (did you mean 'y'?)",
        "  /: found 3; expected an object",
    ]


@pytest.mark.parametrize(
    "error", [BadJob("bad", problems=[Problem("/a", "b", "c")]), Diverged("nan", setting="x")]
)
def test_errors_cross_processes(error):
    """A rank's error reads the same in the supervisor."""
    copy = pickle.loads(pickle.dumps(error))

    assert (str(error), vars(error), error.code) == (str(copy), vars(copy), copy.code)


def _raised(outer: BaseException, inner: BaseException, *, cause: bool) -> BaseException:
    """``outer`` as it is after being raised from, or while handling, ``inner``."""
    try:
        try:
            raise inner
        except BaseException:  # noqa: BLE001 - whatever is given is raised
            if cause:
                raise outer from inner
            raise outer  # noqa: B904 - a context without a cause is what is tested
    except BaseException as error:  # noqa: BLE001 - the exception is the result
        return error


@pytest.mark.parametrize(
    "error",
    [
        DiskFull("full"),
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError('Error while serializing: IoError(Os { code: 28, message: "No space left on device" })'),
        RuntimeError("I/O error: write failed (os error 28)"),
    ],
)
def test_a_full_disk_is_recognised(error: BaseException):
    """By type, by number, and by the text of libraries that report no number, along causes and contexts."""
    assert is_disk_full(error)
    assert is_disk_full(_raised(RuntimeError("save failed"), error, cause=True))
    assert is_disk_full(_raised(RuntimeError("save failed"), error, cause=False))
    deep = _raised(ValueError("a"), _raised(KeyError("b"), error, cause=False), cause=True)
    assert is_disk_full(deep)


@pytest.mark.parametrize("error", [None, OSError(errno.EIO, "I/O error"), RuntimeError("space"), KeyError("x")])
def test_other_errors_are_no_full_disk(error):
    """An I/O error of another kind is not called a full disk."""
    assert not is_disk_full(error)


def test_a_ring_of_causes_ends():
    """Exceptions may point at each other."""
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first

    assert not is_disk_full(first)


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("txet", ["text", "splat"], "did you mean 'text'?"),
        ("fp61", ["bf16", "fp16", "no"], "did you mean 'fp16' or 'bf16'?"),
        ("zzz", ["text", "splat"], "known: splat, text"),
        ("zzz", [], "none is known"),
    ],
)
def test_did_you_mean(word: str, known: list[str], hint: str):
    """The nearest names, or all of them in order when none is near."""
    assert hint == did_you_mean(word, known)
