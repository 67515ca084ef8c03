"""Owns measuring phases: what each held, what it gave back, and who holds what it did not.

A scope of the ledger is a context manager and may lie inside another one. What was made inside must be gone
at its end unless it was handed over; tensors that are not gone are told by name, memory that no Python object
owns (autograd's, C++'s) in bytes. This file must not know what a phase does, nor how survivors are found.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from app_trainer_sdk.errors import InternalError, StopRequested
from app_trainer_sdk.quantities import MIB
from app_trainer_sdk.training.census import CENSUS, Census, Scope
from app_trainer_sdk.training.holders import name_holders
from app_trainer_sdk.training.memory import Probe
from app_trainer_sdk.training.phase_row import Row, verdict

Policy = Literal["report", "warn", "raise"]

#: The first pass of a phase leaves library state behind that nothing names (imports, thread pools, kernel
#: caches: 7 to 70 MiB were seen); once the same phase has run in this process, less has to be explained.
COLD_TOLERANCE_BYTES = 128 * MIB
#: Libraries keep something for each new shape too: 1.4 MiB were seen in the second pass of an extraction.
WARM_TOLERANCE_BYTES = 8 * MIB

#: Phases that ended well in this process: what libraries keep, they keep once for each process.
_WARM: set[str] = set()


@dataclass
class _Open:
    """A scope that has not ended."""

    row: Row
    scope: Scope
    started: float


class Ledger:
    """Measures phases and writes a row for each.

    Args:
        probe: reads memory.
        write: takes a finished row.
        policy: what happens when a phase that promised to release did not.
        rank: whose memory it is.
        clock: seconds, monotonic.
        census: finds what was made inside a scope; there is one for each process.
        warm: names of phases that ran before in this process.
    """

    def __init__(
        self,
        probe: Probe,
        write: Callable[[Row], None],
        *,
        policy: Policy = "warn",
        rank: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        census: Census = CENSUS,
        warm: set[str] | None = None,
    ) -> None:
        self.policy: Policy = policy
        self._probe = probe
        self._write = write
        self._rank = rank
        self._clock = clock
        self._census = census
        self._warm = _WARM if warm is None else warm
        self._open: list[_Open] = []

    @contextmanager
    def phase(
        self, name: str, *, inputs: Mapping[str, Any] | None = None, releases: bool = True
    ) -> Iterator[Row]:
        """Measure what happens inside; scopes may lie inside each other.

        Args:
            name: the phase.
            inputs: what went in, for the row.
            releases: whether everything made inside should be gone afterwards.

        Raises:
            InternalError: something was kept and the policy is ``raise``.
        """
        here = self._begin(name, inputs or {})
        row = here.row
        try:
            yield row
        except StopRequested as stop:
            row.verdict = f"stopped: {stop.reason}"
            raise
        except BaseException as error:
            row.verdict = f"failed: {type(error).__name__}"
            raise
        finally:
            self._end(here, releases)
        self._complain(row)

    def _begin(self, name: str, inputs: Mapping[str, Any]) -> _Open:
        row = Row(name, within=self._open[-1].row.phase if self._open else "", rank=self._rank, inputs=inputs)
        self._note_peak()
        scope = self._census.enter()
        self._probe.release()
        row.before = self._probe.read()
        self._probe.reset()
        here = _Open(row, scope, self._clock())
        self._open.append(here)
        return here

    def _end(self, here: _Open, releases: bool) -> None:
        row, scope = here.row, here.scope
        self._note_peak()  # waits for the device
        row.seconds = self._clock() - here.started
        self._open.remove(here)
        self._census.leave(scope)
        self._read(row)
        if not row.verdict:
            self._judge(row, scope, releases)
        if row.process is not None:
            row.peak = max(row.peak, int(row.process["peak"]))
        if self._open:  # a peak inside is a peak of what is around it
            self._open[-1].row.peak = max(self._open[-1].row.peak, row.peak)
        self._probe.reset()
        self._write(row)

    def _judge(self, row: Row, scope: Scope, releases: bool) -> None:
        row.warm = row.phase in self._warm
        row.tolerance = WARM_TOLERANCE_BYTES if row.warm else COLD_TOLERANCE_BYTES
        if not releases:
            row.verdict = "held on purpose"
        else:
            self._name(row, scope)
            if row.unnamed > row.tolerance or not all(held.certain for held in row.survivors):
                # Garbage among what was set aside at the beginning may be all there is to it.
                self._census.leave(scope, everything=True)
                self._read(row)
                self._name(row, scope)
            assert row.after is not None
            # A card's allocator always counts, and at its best says that nothing is handed out.
            row.verdict = verdict(row, counts=self._probe.device != "cpu" or row.after.allocated > 0)
        if not row.reused:
            self._warm.add(row.phase)

    def _name(self, row: Row, scope: Scope) -> None:
        with self._census.thawed():
            handed = row.handed_over()
            row.survivors = name_holders(scope, self._probe.device, handed=handed, machinery=(__file__,))
        row.unnamed = max(0, row.unnamed - sum(held.device_bytes for held in row.survivors))

    def _read(self, row: Row) -> None:
        """Read memory at the end; what is more than at the beginning and was not handed over is unnamed yet."""
        assert row.before is not None
        self._probe.release()
        row.after = self._probe.read()
        counted = row.handed_and_alive() if self._probe.device == "cpu" else 0
        row.unnamed = max(0, row.after.allocated - row.before.allocated - counted)
        if self._probe.peak_of:
            row.released = max(0, row.peak - int(getattr(row.after, self._probe.peak_of)))

    def _note_peak(self) -> None:
        """Before the counter starts anew, the scope that is open takes its peak."""
        if self._open:
            self._open[-1].row.peak = max(self._open[-1].row.peak, self._probe.peak())

    def _complain(self, row: Row) -> None:
        if not row.verdict.startswith("kept"):
            return
        sentence = f"phase {row.phase} {row.verdict}"
        if self.policy == "raise":
            raise InternalError(
                sentence,
                expected="everything made inside to be gone, or handed over as files or with hand_over()",
                setting="/hyperparameters/memory_release",
            )
        if self.policy == "warn":
            warnings.warn(sentence, stacklevel=4)
