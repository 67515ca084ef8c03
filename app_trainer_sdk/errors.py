"""Owns the tree of errors and the exit codes a trainer container may end with.

Every ending has one code, and every message has three parts: what was found (with the value), what was
expected, and which setting to change. This file must not know who raises or who reports.

::

    TrainerError
    ├── BadJob                 64  the job document is wrong
    ├── BadData                65  the data cannot train this model
    ├── InputMissing           66  an input is not there, or no longer
    ├── DependencyUnavailable  69  something outside did not answer, or a package is missing
    ├── InternalError          70  ours
    ├── HostOutOfMemory        71
    ├── PeerFailed             72  another rank ended first
    ├── DiskFull               73
    ├── UploadFailed           74
    ├── Fenced                 76  a newer attempt runs
    ├── HardwareUnfit          78
    ├── GpuOutOfMemory         79
    ├── GpuFault               80
    └── Diverged               82
    StopRequested (a BaseException)  75 interrupted, 76 fenced, 77 deadline, 81 canceled
"""

from __future__ import annotations

import enum
import errno
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

Kind = TypeVar("Kind")
Origin = Literal["user", "system", "resource"]
StopReason = Literal["interrupted", "deadline", "canceled", "fenced", "peer"]


class ExitCode(enum.IntEnum):
    """What a trainer process may end with: 0 for completed work, never for a failure or a stop."""

    SUCCEEDED = 0
    BAD_JOB = 64
    BAD_DATA = 65
    INPUT_MISSING = 66
    DEPENDENCY_UNAVAILABLE = 69
    INTERNAL_ERROR = 70
    HOST_OUT_OF_MEMORY = 71
    PEER_FAILED = 72
    DISK_FULL = 73
    UPLOAD_FAILED = 74
    INTERRUPTED = 75
    FENCED = 76
    DEADLINE = 77
    HARDWARE_UNFIT = 78
    GPU_OUT_OF_MEMORY = 79
    GPU_FAULT = 80
    CANCELED = 81
    DIVERGED = 82


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a document: where (a JSON pointer), what was found, what was expected."""

    pointer: str
    found: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return f"{self.pointer or '/'}: found {self.found}; expected {self.expected}{hint}"


def json_pointer(*path: str | int) -> str:
    """Where something stands in a document (RFC 6901): ``/outputs/put/adapter~1model.safetensors``."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


class TrainerError(Exception):
    """Base of everything the SDK raises on purpose.

    Args:
        found: what was found, with the value.
        expected: what was expected instead.
        setting: the setting, file or variable to change.
    """

    code: ClassVar[ExitCode] = ExitCode.INTERNAL_ERROR
    origin: ClassVar[Origin] = "system"
    retry: ClassVar[str] = "once"

    def __init__(self, found: str, *, expected: str = "", setting: str = "") -> None:
        self.found = found
        self.expected = expected
        self.setting = setting
        parts = [found]
        if expected:
            parts.append(f"expected {expected}")
        if setting:
            parts.append(f"change {setting}")
        super().__init__("; ".join(parts))


class BadJob(TrainerError):
    """The job document cannot be run. Carries every problem found, not only the first."""

    code = ExitCode.BAD_JOB
    origin = "user"
    retry = "no"

    def __init__(
        self, found: str, *, expected: str = "", setting: str = "", problems: Sequence[Problem] = ()
    ) -> None:
        self.problems = tuple(problems)
        lines = [found, *(f"  {problem}" for problem in self.problems)]
        super().__init__("\n".join(lines), expected=expected, setting=setting)


class BadData(TrainerError):
    """The data was read and cannot train this model."""

    code = ExitCode.BAD_DATA
    origin = "user"
    retry = "no"


class InputMissing(TrainerError):
    """An input does not exist, or exists no longer."""

    code = ExitCode.INPUT_MISSING
    origin = "user"
    retry = "no"


class DependencyUnavailable(TrainerError):
    """Something outside this process did not answer, or a package is not installed."""

    code = ExitCode.DEPENDENCY_UNAVAILABLE
    retry = "later"


class InternalError(TrainerError):
    """Our mistake, or a trainer image's."""


def refuse_other(value: Any, kind: type[Kind], method: str) -> Kind:
    """What a trainer's ``method`` returned, which must be a ``kind``.

    Raises:
        InternalError: it is something else.
    """
    if not isinstance(value, kind):
        raise InternalError(f"{method} returned {type(value).__name__}", expected=kind.__name__, setting=method)
    return value


class HostOutOfMemory(TrainerError):
    """The host's memory, not the GPU's."""

    code = ExitCode.HOST_OUT_OF_MEMORY
    origin = "resource"
    retry = "bigger host"


class PeerFailed(TrainerError):
    """This rank stopped because another one ended first."""

    code = ExitCode.PEER_FAILED
    retry = "yes"


class DiskFull(TrainerError):
    """No space left; what was complete before still is."""

    code = ExitCode.DISK_FULL
    origin = "resource"
    retry = "bigger disk"


class UploadFailed(TrainerError):
    """Work is done and kept; handing it over failed."""

    code = ExitCode.UPLOAD_FAILED
    retry = "upload only"


class Fenced(TrainerError):
    """A newer attempt of the same job runs: this one must say and upload nothing more."""

    code = ExitCode.FENCED
    retry = "never this attempt"


class HardwareUnfit(TrainerError):
    """This machine cannot run the job."""

    code = ExitCode.HARDWARE_UNFIT
    origin = "resource"
    retry = "other machine"


class GpuOutOfMemory(TrainerError):
    """The accelerator's memory ran out."""

    code = ExitCode.GPU_OUT_OF_MEMORY
    origin = "resource"
    retry = "bigger GPU"


class GpuFault(TrainerError):
    """The accelerator failed, not the program."""

    code = ExitCode.GPU_FAULT
    retry = "other machine"


class Diverged(TrainerError):
    """Losses or gradients stayed non-finite; the last finite checkpoint is kept."""

    code = ExitCode.DIVERGED
    origin = "user"
    retry = "no"


class StopRequested(BaseException):
    """Someone asked this run to stop. A ``BaseException`` so that no ``except Exception`` swallows it."""

    codes: ClassVar[dict[str, ExitCode]] = {
        "interrupted": ExitCode.INTERRUPTED,
        "deadline": ExitCode.DEADLINE,
        "canceled": ExitCode.CANCELED,
        "fenced": ExitCode.FENCED,
        "peer": ExitCode.PEER_FAILED,
    }

    def __init__(self, reason: StopReason, *, checkpoint: bool = True) -> None:
        self.reason = reason
        self.checkpoint = checkpoint
        super().__init__(f"stop requested: {reason}")

    def __reduce__(self) -> tuple[Any, ...]:
        return _stop_again, (self.reason, self.checkpoint)

    @property
    def code(self) -> ExitCode:
        """The exit code this stop ends with, whether or not a checkpoint was saved."""
        return self.codes[self.reason]


def _stop_again(reason: StopReason, checkpoint: bool) -> StopRequested:
    """A stop request on the other side of a pickle, such as a loader worker's pipe."""
    return StopRequested(reason, checkpoint=checkpoint)


def is_disk_full(error: BaseException | None) -> bool:
    """True when ``error`` or anything it came from says that a disk or quota is full.

    safetensors reports an I/O error as text, so the number alone is not enough.
    """
    return any(_says_disk_full(each) for each in origins(error))


def origins(error: BaseException | None) -> Iterator[BaseException]:
    """``error`` and everything it came from: causes, contexts and members of groups, each once."""
    waiting = [error]
    seen: set[int] = set()
    while waiting:
        here = waiting.pop()
        if here is None or id(here) in seen:
            continue
        seen.add(id(here))
        yield here
        waiting += [here.__cause__, here.__context__]
        if isinstance(here, BaseExceptionGroup):
            waiting += here.exceptions


def text_of(error: BaseException) -> str:
    """What an exception says, in characters that any file takes; one that fails to say anything is silent.

    The name of a file that is no UTF-8 has halves of characters in it, and foreign classes do anything.
    """
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:  # noqa: BLE001 - an ending must be told whatever it came from
        return ""


def _says_disk_full(error: BaseException) -> bool:
    if isinstance(error, DiskFull):
        return True
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in text_of(error) or "os error 28" in text_of(error)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint naming the nearest known words, or all of them when none is near."""
    names = sorted(known)
    import difflib  # only once something is wrong: every command reads this file

    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if near:
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    return "known: " + ", ".join(names) if names else "none is known"
