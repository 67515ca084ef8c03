"""Owns one file from asking for it to its final name: whole, verified, or an error that says who must act.

Rounds of the engine follow one another, a bounded number of times: begun anew when a mirror's file changed,
in one stream when ranges are not to be had, from one mirror alone when a mixture was wrong. This file must
not know what the file is for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial as partial_of
from pathlib import Path
from typing import final

from app_trainer_sdk.errors import DependencyUnavailable, DiskFull, is_disk_full
from app_trainer_sdk.transfers.addresses import HostRefused
from app_trainer_sdk.transfers.claims import claim
from app_trainer_sdk.transfers.engine import NoMirror, Restart, Round
from app_trainer_sdk.transfers.faults import Fault
from app_trainer_sdk.transfers.mirrors import Mirrors
from app_trainer_sdk.transfers.partial import Lost, Partial, State, part_lengths
from app_trainer_sdk.transfers.pauses import patiently
from app_trainer_sdk.transfers.progress import Meter
from app_trainer_sdk.transfers.requests import ask_mirror
from app_trainer_sdk.transfers.tools import Tools
from app_trainer_sdk.transfers.wanted import Wanted

Check = Callable[[], None]


@dataclass(frozen=True)
class Destination:
    """Where a file goes.

    Attributes:
        partials: folder of files in the making, on the file system of the final name.
        final: the final name, from the file's SHA-256.
        read_only: nobody should write into it: it is shared.
    """

    partials: Path
    final: Callable[[str], Path]
    read_only: bool = False

    def ready(self, wanted: Wanted) -> Path | None:
        """The finished file, when it is known and there."""
        path = self.final(wanted.sha256) if wanted.sha256 else None
        return path if path is not None and _is_there(path, wanted.size) else None


def download(wanted: Wanted, place: Destination, *, tools: Tools, check: Check, meter: Meter) -> Path:
    """Make one file local under its final name.

    Returns:
        the final name: from then on it holds exactly the file that was asked for.

    Raises:
        BadJob: every mirror has the same other file, or an address must not be asked.
        InputMissing: every mirror says that it is not there.
        DependencyUnavailable: the mirrors failed.
        DiskFull: what is there is kept.
    """
    while True:
        try:
            partial = claim(
                place.partials, wanted.key, ready=lambda: place.ready(wanted) is not None, check=check,
                clock=tools.clock,
                waiting=lambda: meter.show(f"waiting for the process that fetches {wanted.path}"),
            )  # fmt: skip
            if partial is not None:
                try:
                    return _Download(wanted, partial, tools, check, meter).finish(place)
                finally:
                    partial.release()
            if (there := place.ready(wanted)) is not None:  # else it was removed again just now
                meter.reused(there.stat().st_size)
                return there
        except HostRefused as refused:
            raise refused.at(wanted.setting) from None
        except Lost:
            continue  # another process has it: wait for that one
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(
                    f"no space for {wanted.path} in {place.partials}",
                    expected="free disk space; what came is kept",
                ) from error
            raise


@final
class _Download:
    """The rounds over one file that this process owns."""

    def __init__(self, wanted: Wanted, partial: Partial, tools: Tools, check: Check, meter: Meter) -> None:
        self._wanted = wanted
        self._partial = partial
        self._tools = tools
        self._check = check
        self._meter = meter
        self._mirrors = Mirrors(wanted, tools.patience, now=tools.clock.now, chance=tools.chance)
        self._alone = wanted.sha256 is None
        self._inherited = False

    def finish(self, place: Destination) -> Path:
        """Round after round until the right file is there."""
        allowed = self._tools.patience.restarts + len(self._wanted.urls)
        last = ""
        for _ in range(allowed + 1):
            state, whole = self._prepare()
            run = Round(
                self._wanted, self._partial, state, self._mirrors, self._tools, self._meter, whole=whole,
                alone=self._alone,
            )  # fmt: skip
            try:
                sha256, git_sha1 = run.run(self._check)
            except Restart as reason:
                last = str(reason)
                self._meter.note("restarts")
                self._partial.discard()
            except NoMirror:
                self._keep(state, whole)
                self._refuse_if_none_left()
                self._partial.discard()  # the rest can only come as one stream
            except BaseException:
                self._keep(state, whole)
                raise
            else:
                if (wrong := self._wrong(sha256, git_sha1)) is None:
                    final = place.final(sha256)
                    self._partial.finish(final, read_only=place.read_only)
                    return final
                last = f"{wrong[0]}, expected {wrong[1]}"
                self._blame(state, wrong)
        raise DependencyUnavailable(
            f"{self._wanted.path} was begun anew {allowed} times: {last}",
            expected="a file that stays what it is",
            setting=self._wanted.setting,
        )  # fmt: skip

    def _prepare(self) -> tuple[State, bool]:
        """What to go on with, and whether the file can only come as one stream."""
        left = self._partial.load()
        if left is not None and self._wanted.size not in (None, left.size):
            left = None
        size, whole = self._ask()
        if whole or size is None:
            self._partial.discard()
            state = State(0, 1, [0])
        elif left is not None and left.size == size and (self._wanted.sha256 or left.etags):
            self._inherited = True
            state = left
            self._meter.reused(sum(left.done))
        else:
            self._partial.discard()
            self._inherited = False
            part = self._tools.patience.part_of(size)
            state = State(size, part, [0] * len(part_lengths(size, part)))
        whole = whole or size is None
        self._partial.begin(state, keep=not whole)
        return state, whole

    def _ask(self) -> tuple[int | None, bool]:
        """The size, from the job or the first mirror that answers, and whether one stream is all there is."""
        if self._wanted.size is not None and self._wanted.sha256 is not None:
            ranged = [each for each in self._mirrors if not each.out and each.ranged]
            if not ranged:
                self._refuse_if_none_left()
            return self._wanted.size, not ranged
        while True:
            self._check()
            mirror, wait = self._mirrors.pick()
            if mirror is None:
                self._refuse_if_none_left()
            assert mirror is not None
            if wait > 0.0:
                self._pause(wait)
                continue
            try:
                facts = patiently(partial_of(ask_mirror, mirror, self._tools.web, self._wanted), self._check)
            except Fault as fault:
                self._mirrors.failed(mirror, fault)
                continue
            if self._wanted.size is not None and facts.size not in (None, self._wanted.size):
                self._mirrors.gave_wrong(mirror, f"{facts.size} bytes", f"{self._wanted.size} bytes")
                continue
            pinned = facts.etag is not None or self._wanted.sha256 is not None
            size = self._wanted.size if facts.size is None else facts.size
            return size, not (mirror.ranged and pinned and size is not None)

    def _pause(self, seconds: float) -> None:
        """Wait for a mirror, noticing a wish to stop."""
        never, until = threading.Event(), self._tools.clock.now() + seconds
        while (left := until - self._tools.clock.now()) > 0:
            self._check()
            self._tools.clock.wait(never, min(left, 0.25))

    def _refuse_if_none_left(self) -> None:
        if all(each.out for each in self._mirrors):
            raise self._mirrors.ending()

    def _keep(self, state: State, whole: bool) -> None:
        """Leave what is there to the next try; while the machine runs on, positions tell it too."""
        if not whole:
            try:
                self._partial.save(state)
            except OSError:
                return  # the error that led here is the one to tell

    def _wrong(self, sha256: str, git_sha1: str) -> tuple[str, str] | None:
        wanted = self._wanted
        if wanted.sha256 is not None and sha256 != wanted.sha256:
            return f"the sha256 {sha256}", wanted.sha256
        if wanted.git_sha1 is not None and git_sha1 != wanted.git_sha1:
            return f"the git id {git_sha1}", wanted.git_sha1
        return None

    def _blame(self, state: State, wrong: tuple[str, str]) -> None:
        """Wrong bytes are put away. One mirror's own are its fault; whose a mixture's are, nobody knows."""
        self._meter.note("wrong_digests")
        sources = [each for each in self._mirrors if each.shown in state.etags]
        if len(sources) == 1 and not self._inherited:
            self._mirrors.gave_wrong(sources[0], *wrong)
        self._alone = True
        self._partial.quarantine()
        self._refuse_if_none_left()


def _is_there(path: Path, size: int | None) -> bool:
    try:
        return path.stat().st_size == size or size is None
    except FileNotFoundError:
        return False
