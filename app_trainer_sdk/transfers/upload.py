"""Owns one file from asking for a grant to its confirmation, through whatever goes wrong on the way.

Round after round: ask how the file is wanted, which parts are there, send those that are not, say that all was
sent, hear that size and digest were verified. What a round could not do the next one does, until nothing has
moved for too long. This file must not know what the file is for, nor the words of the grants.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import final

from app_trainer_sdk.errors import UploadFailed
from app_trainer_sdk.transfers.effort import UploadTools
from app_trainer_sdk.transfers.faults import Busy, Fault
from app_trainer_sdk.transfers.grants import Grants
from app_trainer_sdk.transfers.outgoing import Outgoing
from app_trainer_sdk.transfers.pauses import LOOK_SECONDS, full_jitter, patiently
from app_trainer_sdk.transfers.progress import Meter
from app_trainer_sdk.transfers.sending import Sending, WrongBytes

Check = Callable[[], None]
LONGEST_RETRY_AFTER = 300.0
SHORTEST_PAUSE = 0.05


def upload(file: Outgoing, grants: Grants, *, tools: UploadTools, check: Check, meter: Meter) -> None:
    """Send one file and have it confirmed; returns only once the receiver has verified it.

    Raises:
        UploadFailed: nothing has moved for too long, or the receiver keeps refusing what it got.
        Fenced: a newer attempt runs.
    """
    trouble, refused = _Trouble(file, tools), 0
    while True:
        check()
        try:
            offer = patiently(partial(grants.grant, file), check)
            if offer.verified:
                meter.reused(file.size)
                return
            Sending(file, offer, grants, tools, meter, moved=trouble.over_with).run(check)
            wrong = patiently(partial(grants.complete, offer.upload_id), check)
            if not wrong:
                return
            raise WrongBytes(f"the receiver did not verify it: {wrong}")
        except WrongBytes as fault:
            refused += 1
            if refused > tools.effort.restarts:
                raise UploadFailed(
                    f"{file.name}/{file.path} was refused {refused} times: {fault}",
                    expected=f"{file.size} bytes with the sha256 {file.sha256}",
                ) from None
            trouble.bear(fault, check)
        except Fault as fault:
            trouble.bear(fault, check)


@final
class _Trouble:
    """How long nothing has moved, and the pauses meanwhile."""

    def __init__(self, file: Outgoing, tools: UploadTools) -> None:
        self._file = file
        self._tools = tools
        self._lock = threading.Lock()
        self._taken: set[int] = set()
        self._tries, self._since = 0, tools.clock.now()

    def over_with(self, part: int) -> None:
        """A part was taken: something moved. One that was taken before and is sent again is no way on."""
        with self._lock:
            if part not in self._taken:
                self._taken.add(part)
                self._tries, self._since = 0, self._tools.clock.now()

    def bear(self, fault: Fault, check: Check) -> None:
        """Wait before another round, or give up."""
        tools = self._tools
        with self._lock:
            self._tries += 1
            waited = tools.clock.now() - self._since
            if waited >= tools.effort.give_up_seconds or self._tries > tools.effort.most_failures:
                raise UploadFailed(
                    f"{self._file.name}/{self._file.path} is not uploaded after {self._tries} tries "
                    f"in {waited:.0f} s: {fault}",
                    expected="a store that takes it; the file is kept",
                    setting="APP_TRAINER_UPLOAD_WAIT_SECONDS, or app-trainer upload DIR later",
                ) from None
            left = tools.effort.give_up_seconds - waited
            asked = fault.seconds if isinstance(fault, Busy) else None
            pause = full_jitter(self._tries, tools.chance) if asked is None else min(asked, LONGEST_RETRY_AFTER)
        never, until = threading.Event(), tools.clock.now() + max(SHORTEST_PAUSE, min(pause, left))
        while (rest := until - tools.clock.now()) > 0:
            check()
            tools.clock.wait(never, min(rest, LOOK_SECONDS))
