"""Owns which mirror is asked next: order, failures, pauses, measured speed. It must not know parts or bytes."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

from app_trainer_sdk.errors import BadJob, DependencyUnavailable, InputMissing, TrainerError
from app_trainer_sdk.redaction import shown_url
from app_trainer_sdk.transfers.answers import Facts
from app_trainer_sdk.transfers.faults import Abandoned, Busy, Fault, Gone, NoRanges, Unusable
from app_trainer_sdk.transfers.pauses import full_jitter
from app_trainer_sdk.transfers.wanted import Patience, Wanted

#: Progress that makes up for earlier failures: a line that breaks often still brings the file.
FORGIVING_BYTES = 1 << 20
#: Whole answers to a range, in a row, until a mirror counts as one without ranges.
WHOLE_ANSWERS = 3


@dataclass
class Mirror:
    """One place a file may be had from, and how it did.

    Attributes:
        url: with everything secret in it.
        facts: what it said of the file, None before it was asked.
        failures: in a row.
        whole_answers: to ranges, in a row.
        out: why it is not asked any more; empty while it is.
        gone: it says that the file is not there.
        wrong: what its file has, and what was expected, where that is another file.
        rate: bytes a second of one connection, None before it was measured.
    """

    url: str = field(repr=False)
    facts: Facts | None = None
    failures: int = 0
    whole_answers: int = 0
    out: str = ""
    gone: bool = False
    wrong: tuple[str, str] | None = None
    not_before: float = 0.0
    failed_at: float = float("-inf")
    rate: float | None = None
    asking: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def shown(self) -> str:
        """The URL without its secrets."""
        return shown_url(self.url)

    @property
    def ranged(self) -> bool:
        """Whether parts can be asked for."""
        return self.whole_answers < WHOLE_ANSWERS and not (
            self.facts is not None and self.facts.ranged is False
        )


@final
class Mirrors:
    """The mirrors of one file. Used by several threads."""

    def __init__(
        self, wanted: Wanted, patience: Patience, *, now: Callable[[], float], chance: random.Random
    ) -> None:
        self._wanted = wanted
        self._patience = patience
        self._now = now
        self._chance = chance
        self._all = [Mirror(url) for url in wanted.urls]
        self._lock = threading.RLock()

    def __iter__(self) -> Iterator[Mirror]:
        return iter(self._all)

    def pick(self, *, avoid: Mirror | None = None, ranged: bool = False) -> tuple[Mirror | None, float]:
        """The mirror to ask next, and the seconds to wait before; None when none is left.

        Fewest failures first; among equals the fastest where all were measured, else the job's order.

        Args:
            avoid: ask another one, when there is one.
            ranged: only those that serve parts.
        """
        with self._lock:
            now = self._now()
            left = [each for each in self._all if not each.out and (each.ranged or not ranged)]
            others = [each for each in left if each is not avoid]
            if not left:
                return None, 0.0
            free = [each for each in others or left if each.not_before <= now]
            if free:
                return min(free, key=lambda each: self._rank(each, free, now)), 0.0
            soonest = min(left, key=lambda each: each.not_before)
            return soonest, max(0.0, soonest.not_before - now)

    def failed(self, mirror: Mirror, fault: Fault, *, began: float = float("inf"), progress: int = 0) -> None:
        """Charge a fault.

        Args:
            mirror: whose it is.
            fault: what happened.
            began: when the request began; those that were under way when another failed share its one failure.
            progress: bytes that came before it and need not come again.
        """
        if isinstance(fault, Abandoned):
            return
        with self._lock:
            if isinstance(fault, Gone | Unusable):
                mirror.out, mirror.gone = str(fault), isinstance(fault, Gone)
                return
            if isinstance(fault, NoRanges):
                mirror.whole_answers += 1
                return
            # Only what is charged moves it: two in turn must not excuse each other.
            if began >= mirror.failed_at:
                mirror.failures = 1 if progress >= FORGIVING_BYTES else mirror.failures + 1
                mirror.failed_at = self._now()
            now = self._now()
            pause = full_jitter(mirror.failures, self._chance)
            if isinstance(fault, Busy) and fault.seconds is not None:
                pause = fault.seconds
            if mirror.failures >= self._patience.tries or pause > self._patience.longest_wait:
                mirror.out = str(fault)
            mirror.not_before = max(mirror.not_before, now + pause)

    def worked(self, mirror: Mirror, size: int, seconds: float) -> None:
        """A whole request succeeded."""
        with self._lock:
            mirror.failures = mirror.whole_answers = 0
            rate = size / max(seconds, 1e-6)
            mirror.rate = rate if mirror.rate is None else 0.7 * mirror.rate + 0.3 * rate

    def gave_wrong(self, mirror: Mirror, found: str, expected: str) -> None:
        """It has another file than the job says: it is not asked again."""
        with self._lock:
            mirror.out = f"{mirror.shown} has {found}, expected {expected}"
            mirror.wrong = found, expected

    def ending(self) -> TrainerError:
        """Why none is left, as the error that says who has to do something.

        All agree that the file is another one: the job is wrong (64). All say it is not there: it is missing
        (66). Else something outside failed (69).
        """
        reasons = "; ".join(dict.fromkeys(each.out for each in self._all if each.out))
        setting = self._wanted.setting
        wrong = {each.wrong for each in self._all}
        if len(wrong) == 1 and (only := wrong.pop()) is not None:
            found, expected = only
            if self._wanted.in_job:
                setting += "/sha256" if found.startswith("the sha256") else "/size"
            return BadJob(f"{self._all[0].shown} has {found}", expected=expected, setting=setting)
        if self._all and all(each.gone for each in self._all):
            return InputMissing(
                reasons, expected=f"{self._wanted.path}, or a URL that has not expired", setting=setting
            )
        many = f"none of {len(self._all)} mirrors has {self._wanted.path}: " if len(self._all) > 1 else ""
        return DependencyUnavailable(many + reasons, expected="the whole file", setting=setting)

    def _rank(self, mirror: Mirror, among: Sequence[Mirror], now: float) -> tuple[int, float, int]:
        failures = mirror.failures if now - mirror.failed_at < self._patience.forget_seconds else 0
        measured = all(each.rate is not None for each in among)
        return failures, -(mirror.rate or 0.0) if measured else 0.0, self._all.index(mirror)
