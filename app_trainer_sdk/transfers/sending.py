"""Owns one round over one file: targets granted just in time, parts sent over a few connections, at a pace.

Threads send; the caller's thread waits and notices a wish to stop. A target is asked for anew when little of
its time is left or the store says that it has expired; any other trouble ends the round once the parts under
way are done, and nothing that was stored is sent again. This file must not know what follows a round.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, final

from app_trainer_sdk.errors import UploadFailed
from app_trainer_sdk.redaction import shown_url
from app_trainer_sdk.transfers.addresses import HostRefused
from app_trainer_sdk.transfers.answers import refusal
from app_trainer_sdk.transfers.effort import UploadTools
from app_trainer_sdk.transfers.faults import Abandoned, Fault
from app_trainer_sdk.transfers.grants import BATCH, Grants, Offer, Target
from app_trainer_sdk.transfers.outgoing import Outgoing, Part, pieces
from app_trainer_sdk.transfers.pauses import patiently, run_threads
from app_trainer_sdk.transfers.progress import Meter
from app_trainer_sdk.transfers.reading import beginning

if TYPE_CHECKING:
    from app_trainer_sdk.transfers.web import Answer

#: A target is asked for anew when less than this of its time is left: a quarter, at most a minute.
FRESH_SHARE, FRESH_SECONDS = 0.25, 60.0
#: Asked anew so often for one part in one round.
MOST_REFRESHES = 3
SHOW_SECONDS = 0.5
REFUSAL_BYTES, REFUSAL_SECONDS = 4096, 10.0
#: Words of stores for bytes that are not those that were signed.
WRONG_WORDS = (b"BadDigest", b"XAmzContent", b"InvalidDigest", b"hecksum")


class Expired(Fault):
    """The store does not take the URL any more."""


class WrongBytes(Fault):
    """What came is not what was announced."""


@final
class Sending:
    """Send what is not there yet.

    Args:
        file: what is sent.
        offer: how it is wanted.
        grants: gives targets.
        tools: connections, effort, clock.
        meter: counts bytes.
        moved: called, from any thread, with the number of a part that was taken.
    """

    def __init__(
        self, file: Outgoing, offer: Offer, grants: Grants, tools: UploadTools, meter: Meter, *,
        moved: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._file = file
        self._offer = offer
        self._grants = grants
        self._tools = tools
        self._meter = meter
        self._moved = moved
        self._lock = threading.Lock()
        self._asking = threading.Lock()
        self._stop = threading.Event()
        self._shown = 0.0
        self._pending: deque[Part] = deque()
        self._targets: dict[int, tuple[Target, float]] = {}
        self._error: BaseException | None = None

    def run(self, check: Callable[[], None]) -> None:
        """Send it.

        Raises:
            Fault: not everything was taken.
            UploadFailed: the file cannot be read any more.
        """
        self._pending.extend(self._missing(check))
        count = min(self._tools.effort.connections, len(self._pending))
        threads = [threading.Thread(target=self._work, name="upload", daemon=True) for _ in range(count)]
        self._shown = self._tools.clock.now()
        try:
            run_threads(threads, check, self._show_now_and_then)
        finally:
            self._stop.set()  # who is still sending leaves at its next piece
        if self._error is not None:
            raise self._error

    def _show_now_and_then(self) -> None:
        if self._tools.clock.now() - self._shown >= SHOW_SECONDS:
            self._shown = self._tools.clock.now()
            self._meter.show()

    def _missing(self, check: Callable[[], None]) -> list[Part]:
        if self._offer.put is not None:
            self._keep({1: self._offer.put}, self._tools.clock.now())
            return [self._file.whole()]
        there = patiently(partial(self._grants.stored, self._offer.upload_id), check)
        parts = self._file.parts()
        missing = [each for each in parts if there.get(each.number) != each.sha256]
        self._meter.reused(sum(each.size for each in parts) - sum(each.size for each in missing))
        return missing

    def _work(self) -> None:
        try:
            while (part := self._next()) is not None:
                self._deliver(part)
                self._moved(part.number)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            with self._lock:
                self._pending.clear()
                if self._error is None:
                    self._error = error

    def _next(self) -> Part | None:
        with self._lock:
            return self._pending.popleft() if self._pending and not self._stop.is_set() else None

    def _deliver(self, part: Part) -> None:
        """Send one part; a target that has expired meanwhile is replaced, a bounded number of times."""
        for refreshes in range(MOST_REFRESHES + 1):
            target = self._target(part, anew=refreshes > 0)
            try:
                self._send(part, target)
            except Expired:
                if refreshes == MOST_REFRESHES:
                    raise
                self._meter.note("refreshed")
            else:
                return

    def _target(self, part: Part, *, anew: bool) -> Target:
        """Where a part goes: granted already and still fresh, else asked for with those that follow it."""
        with self._asking:
            known = self._targets.pop(part.number, None)
            if known is not None and not anew and self._tools.clock.now() < known[1]:
                return known[0]
            now = self._tools.clock.now()
            if self._offer.put is not None:
                self._keep_put(now)
            else:
                with self._lock:
                    following = [part, *self._pending][:BATCH]
                self._keep(self._grants.parts(self._offer.upload_id, following), now)
            granted = self._targets.pop(part.number, None)
            if granted is None:
                raise Fault(f"no grant for part {part.number} of {self._file.path}")
            return granted[0]

    def _keep_put(self, now: float) -> None:
        again = self._grants.grant(self._file)
        if again.put is not None and again.upload_id == self._offer.upload_id:
            self._keep({1: again.put}, now)

    def _keep(self, targets: Mapping[int, Target], now: float) -> None:
        for number, target in targets.items():
            left = target.expires_s
            fresh = float("inf") if left is None else now + left - min(FRESH_SECONDS, left * FRESH_SHARE)
            self._targets[number] = (target, fresh)

    def _send(self, part: Part, target: Target) -> None:
        sent = 0

        def body() -> Iterator[bytes]:
            nonlocal sent
            for piece in self._pieces(part):
                sent += len(piece)
                self._meter.add(len(piece), target.url)
                yield piece

        headers = {**target.headers, "Content-Length": str(part.size)}
        try:
            with self._tools.web.open("PUT", target.url, headers, body=body()) as answer:
                if not 200 <= answer.status < 300:
                    raise _refused(answer, target.url)
                beginning(answer, REFUSAL_BYTES, REFUSAL_SECONDS)  # read to its end the connection goes on
        except HostRefused as error:
            refused = error.at(target.setting)
            raise UploadFailed(refused.found, expected=refused.expected, setting=refused.setting) from None
        except BaseException:
            self._meter.add(-sent, target.url)  # it goes again, or never
            raise

    def _pieces(self, part: Part) -> Iterator[bytes]:
        effort, clock = self._tools.effort, self._tools.clock
        began, moved = clock.now(), 0
        try:
            with self._file.source.open("rb") as file:
                file.seek(part.begin)
                for piece in pieces(file, part.size):
                    if self._stop.is_set():
                        raise Abandoned
                    began += self._tools.throttle.wait(len(piece), clock, self._stop)
                    yield piece
                    moved += len(piece)
                    if clock.now() - began > effort.slow_seconds:
                        if moved < effort.least_rate * (clock.now() - began):
                            raise Fault(f"less than {effort.least_rate:,.0f} bytes a second are taken")
                        began, moved = clock.now(), 0
                if file.tell() != part.begin + part.size:
                    raise UploadFailed(f"{self._file.path} became shorter", expected="a file that stays")
        except FileNotFoundError as error:
            raise UploadFailed(f"{self._file.name}/{self._file.path} is gone", expected="the file") from error


def _refused(answer: Answer, url: str) -> Fault:
    """The fault that a store's answer to a PUT is."""
    said = beginning(answer, REFUSAL_BYTES, REFUSAL_SECONDS)
    if answer.status == 403 or (answer.status == 400 and b"xpired" in said):
        return Expired(f"{shown_url(url)} answered {answer.status}")
    if answer.status in (400, 412, 422) and any(word in said for word in WRONG_WORDS):
        return WrongBytes(f"{shown_url(url)} answered {answer.status}: other bytes than announced")
    return refusal(answer, url)
