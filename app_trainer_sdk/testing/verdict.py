"""Owns how a promise is told to be kept, broken or not applicable. It must not know any promise."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app_trainer_sdk.errors import TrainerError

SDK = Path(__file__).parent.parent
STANDARD = Path(traceback.__file__).parent


class BrokenPromise(TrainerError, AssertionError):  # noqa: N818 - what it is is said by its name
    """A trainer does not do what the contract promises; the message says what to change."""


class NotApplicable(Exception):  # noqa: N818 - no error: the promise is about another kind of trainer
    """The promise says nothing about this trainer, or cannot be judged."""


@dataclass(frozen=True)
class Result:
    """What became of one promise.

    Attributes:
        name: the promise.
        status: ``pass``, ``fail`` or ``skip``.
        reason: why it failed or was skipped; what was measured, if anything, when it passed.
        seconds: how long it took to find out.
    """

    name: str
    status: Literal["pass", "fail", "skip"]
    reason: str = ""
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong: kept, or not applicable."""
        return self.status != "fail"

    def line(self) -> str:
        """The result as ``check`` prints it."""
        if self.status == "pass":
            return f"pass  {self.name}" + (f"  ({self.reason})" if self.reason else "")
        word = "FAIL" if self.status == "fail" else "skip"
        return f"{word}  {self.name}: {self.reason}"


def reason_of(error: BaseException) -> str:
    """An exception as a reason: a broken promise speaks for itself, anything else says where it was raised."""
    if isinstance(error, TrainerError):
        return str(error)
    place = _place(error)
    said = f": {error}" if str(error) else ""
    return f"{type(error).__name__}{said}" + (f"; raised in {place}" if place else "")


def _place(error: BaseException) -> str:
    """The innermost frame outside the SDK, the installed libraries and Python's own: the author's own line."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        inside = path.is_relative_to(STANDARD) or (path.is_relative_to(SDK) and "toys" not in path.name)
        if not inside and "site-packages" not in path.parts and path.exists():
            return f"{path.name}, line {frame.lineno}, {frame.name}"
    return ""
