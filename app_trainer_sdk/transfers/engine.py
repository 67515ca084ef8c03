"""Owns one round over one file: parts handed to connections until all are there, or until nothing can go on.

Threads write; the caller's thread waits, notices a wish to stop, and asks again for what lags. This file
must not know what happens between rounds, nor what the finished file is for.
"""

from __future__ import annotations

import statistics
import threading
from collections import deque
from collections.abc import Callable
from typing import final

from app_trainer_sdk.transfers.digests import TailDigest
from app_trainer_sdk.transfers.faults import Abandoned, Changed, Fault, NoRanges, Overlong
from app_trainer_sdk.transfers.mirrors import Mirror, Mirrors
from app_trainer_sdk.transfers.partial import Partial, State, part_lengths
from app_trainer_sdk.transfers.progress import Meter
from app_trainer_sdk.transfers.requests import Request, Span, ask_mirror
from app_trainer_sdk.transfers.tools import Tools
from app_trainer_sdk.transfers.wanted import Wanted

TICK_SECONDS, SHOW_SECONDS = 0.1, 0.5
#: A part is asked for again elsewhere when it is this much slower than the median, and at most so often.
LAGGING_SHARE, MOST_REASKS = 0.25, 2
FEWEST_RATES = 3


class Restart(Exception):  # noqa: N818 - not an error of ours
    """What is there may belong to another file: begin anew."""


class NoMirror(Exception):  # noqa: N818 - not an error of ours
    """No mirror is left that can be asked in this way."""


@final
class Round:
    """Fetch what is missing of one file.

    Args:
        wanted: the file.
        partial: where it comes into being.
        state: what is there of it; changed as bytes come.
        mirrors: who may be asked.
        tools: connections, patience, clock.
        meter: counts bytes.
        whole: one stream without ranges, from the beginning.
        alone: take all bytes from one mirror: without a digest, or after a wrong one, mirrors are not mixed.
    """

    def __init__(
        self, wanted: Wanted, partial: Partial, state: State, mirrors: Mirrors, tools: Tools, meter: Meter, *,
        whole: bool, alone: bool,
    ) -> None:  # fmt: skip
        self._wanted = wanted
        self._partial = partial
        self._state = state
        self._mirrors = mirrors
        self._tools = tools
        self._meter = meter
        self._whole = whole
        self._alone = alone
        self._lengths: list[int | None] = (
            [wanted.size] if whole else [*part_lengths(state.size, state.part_bytes)]
        )
        missing = [index for index, length in enumerate(self._lengths) if state.done[index] != length]
        self._pending = deque([0] if whole else missing)
        self._active: set[Request] = set()
        self._avoid: dict[int, Mirror] = {}
        self._reasked: dict[int, int] = {}
        self._rates: deque[float] = deque(maxlen=32)
        self._changed = threading.Condition(threading.RLock())
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._digest = self._new_digest()
        self._low = 0

    def run(self, check: Callable[[], None]) -> tuple[str, str]:
        """Fetch it.

        Returns:
            SHA-256 and, where it was wanted, git's blob id of what is there.

        Raises:
            Restart: the mirrors' file is another one than before.
            NoMirror: nobody is left to ask.
        """
        self._begin_threads()
        shown = float("-inf")
        try:
            while not self._settled():
                check()
                if self._tools.clock.now() - shown >= SHOW_SECONDS:
                    shown = self._tools.clock.now()
                    self._meter.show()
                self._cut_off_the_silent()
                self._ask_again_for_lagging()
                self._feed_digest()
                with self._changed:
                    if not self._settled():
                        self._changed.wait(TICK_SECONDS)
            if self._error is not None:
                raise self._error
            return self._finish_digest(check)
        finally:
            self._close()

    def _begin_threads(self) -> None:
        for number in range(min(self._tools.patience.connections, len(self._pending))):
            threading.Thread(target=self._work, name=f"transfer-{number}", daemon=True).start()
        if self._pending and not self._whole:
            threading.Thread(target=self._keep, name="transfer-keeper", daemon=True).start()

    def _settled(self) -> bool:
        with self._changed:
            return self._error is not None or not (self._pending or self._active)

    # In threads.

    def _work(self) -> None:
        while (request := self._take()) is not None:
            error: BaseException | None = None
            try:
                self._perform(request)
            except BaseException as found:  # noqa: BLE001 - it is raised again where it is waited for
                error = found
            finally:
                request.close()
            self._give_back(request, error)

    def _take(self) -> Request | None:
        """The next part with the mirror to ask for it; None when there is nothing to do any more."""
        while not self._stop.is_set():
            with self._changed:
                if self._settled():
                    return None
                if not self._pending:
                    self._changed.wait(TICK_SECONDS)
                    continue
                index = self._pending[0]
                mirror, wait = self._mirrors.pick(avoid=self._avoid.get(index), ranged=not self._whole)
                if mirror is None:
                    self._end(NoMirror())
                    return None
                if wait <= 0.0:
                    return self._open(index, mirror)
            self._tools.clock.wait(self._stop, wait)
        return None

    def _open(self, index: int, mirror: Mirror) -> Request | None:
        self._pending.popleft()
        try:
            writer = self._partial.open_writer(self._state, index)
        except BaseException as error:  # noqa: BLE001 - as above
            self._end(error)
            return None
        request = Request(index, mirror, writer, self._tools.clock.now())
        self._active.add(request)
        return request

    def _perform(self, request: Request) -> None:
        self._admit(request.mirror)
        request.began = self._tools.clock.now()
        index = request.index
        span = Span(
            begin=index * self._state.part_bytes, done=self._state.done[index], length=self._lengths[index],
            size=self._wanted.size if self._whole else self._state.size, whole=self._whole,
        )  # fmt: skip
        request.perform(
            span, web=self._tools.web, wanted=self._wanted, patience=self._tools.patience,
            now=self._tools.clock.now, add=self._meter.add,
        )  # fmt: skip

    def _admit(self, mirror: Mirror) -> None:
        """Ask a mirror what it has, and let it give bytes only to the file that is there."""
        facts = ask_mirror(mirror, self._tools.web, self._wanted)
        size = self._wanted.size if self._whole else self._state.size
        if size is not None and facts.size is not None and facts.size != size:
            if self._wanted.size is not None:
                self._mirrors.gave_wrong(mirror, f"{facts.size} bytes", f"{size} bytes")
                raise Abandoned
            raise Changed(f"{mirror.shown} has {facts.size} bytes, {size} before")
        if facts.ranged is False and not self._whole:
            raise NoRanges(f"{mirror.shown} serves no ranges")
        with self._changed:
            etags = self._state.etags
            if mirror.shown in etags and etags[mirror.shown] != facts.etag:
                raise Restart(f"{mirror.shown}: another ETag than before")
            if mirror.shown not in etags and etags and self._alone and not self._whole:
                raise Restart(f"bytes of another mirror than {mirror.shown} are there")
            etags[mirror.shown] = facts.etag

    def _give_back(self, request: Request, error: BaseException | None) -> None:
        with self._changed:
            self._active.discard(request)
            if not request.abandoned and not self._stop.is_set():
                self._settle(request, error)
            self._changed.notify_all()

    def _settle(self, request: Request, error: BaseException | None) -> None:
        seconds = self._tools.clock.now() - request.began
        if error is None:
            self._avoid.pop(request.index, None)
            self._mirrors.worked(request.mirror, request.received, seconds)
            self._rates.append(request.received / max(seconds, 1e-6))
            return
        if not isinstance(error, Fault):
            self._end(error)
            return
        progress = 0 if self._whole else request.received
        self._mirrors.failed(request.mirror, error, began=request.began, progress=progress)
        self._meter.note("faults")
        self._avoid[request.index] = request.mirror
        self._pending.appendleft(request.index)
        if isinstance(error, Changed):
            request.mirror.facts = None
            self._end(Restart(str(error)))
        elif self._whole or isinstance(error, Overlong):
            self._forget(request.index)

    def _forget(self, index: int) -> None:
        """What came of a part is not trusted: it comes again from its beginning."""
        self._state.done[index] = 0
        self._partial.rewind(index)
        self._digest.close()
        self._digest = self._new_digest()
        self._low = 0
        if self._whole:
            self._state.etags.clear()
            self._partial.empty()

    def _end(self, error: BaseException) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def _keep(self) -> None:
        """Make durable what is there, from time to time: the disk's pace must not be the network's."""
        while not self._stop.wait(self._tools.patience.save_seconds):
            try:
                self._partial.save(self._state)
            except OSError as error:
                self._end(error)

    # In the caller's thread.

    def _cut_off_the_silent(self) -> None:
        """What frames a body may trickle in without an end: no read sees that no byte of the file comes."""
        bound = self._tools.clock.now() - 2 * self._tools.patience.slow_seconds
        with self._changed:
            for request in self._active:
                if request.moved_at < bound:
                    request.cut_off()

    def _ask_again_for_lagging(self) -> None:
        """A request far below the median goes to another connection, and another mirror where there is one."""
        if len(self._rates) < FEWEST_RATES:
            return
        bound, now = LAGGING_SHARE * statistics.median(self._rates), self._tools.clock.now()
        with self._changed:
            for request in list(self._active):
                age = now - request.began
                asked = self._reasked.get(request.index, 0)
                if age < self._tools.patience.lagging_seconds or asked >= MOST_REASKS:
                    continue
                if request.received / age < bound:
                    self._reasked[request.index] = asked + 1
                    self._avoid[request.index] = request.mirror
                    self._meter.note("asked_again")
                    request.abandon()
                    self._active.discard(request)
                    self._pending.appendleft(request.index)
                    self._changed.notify_all()

    def _new_digest(self) -> TailDigest:
        size = self._state.size if self._wanted.git_sha1 else None
        return TailDigest(self._partial.data, git_size=size)

    def _feed_digest(self) -> None:
        with self._changed:
            while (
                self._low < len(self._lengths) - 1 and self._state.done[self._low] == self._lengths[self._low]
            ):
                self._low += 1
            if self._lengths:
                self._digest.allow(self._low * self._state.part_bytes + self._state.done[self._low])

    def _finish_digest(self, check: Callable[[], None]) -> tuple[str, str]:
        self._feed_digest()
        size = self._state.done[0] if self._whole else self._state.size
        self._digest.allow(size)
        while not self._digest.reached(size, TICK_SECONDS):
            check()
            self._meter.show()
        return self._digest.sha256, self._digest.git_sha1

    def _close(self) -> None:
        """After this nothing is written to the file any more, whatever thread still hangs in a connection."""
        self._stop.set()
        with self._changed:
            for request in self._active:
                request.abandon()
            self._changed.notify_all()
        self._digest.close()
