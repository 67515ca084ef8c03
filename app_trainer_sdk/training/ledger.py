"""Owns the row each phase leaves: what it held, what it gave back, and who holds what it did not.

A scope of the ledger is a context manager and may lie inside another one. What was made inside must be gone
at its end unless it was handed over; tensors that are not gone are told by name, memory that no Python object
owns (autograd's, C++'s) in bytes. This file must not know what a phase does.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import Tensor

from app_trainer_sdk.errors import InternalError, StopRequested
from app_trainer_sdk.quantities import MIB, memory_text
from app_trainer_sdk.training.census import CENSUS, Census, Held, Scope, name_holders
from app_trainer_sdk.training.memory import Probe, Reading

Policy = Literal["report", "warn", "raise"]
Value = TypeVar("Value")

#: The first pass of a phase leaves library state behind that nothing names (imports, thread pools, kernel
#: caches: 7 to 70 MiB were seen); once the same phase has run in this process, less has to be explained.
COLD_TOLERANCE_BYTES = 128 * MIB
#: Libraries keep something for each new shape too: 1.4 MiB were seen in the second pass of an extraction.
WARM_TOLERANCE_BYTES = 8 * MIB
CONSTANTS_BYTES = MIB
MOST_HOLDERS_TOLD = 3

#: Phases that ended well in this process: what libraries keep, they keep once for each process.
_WARM: set[str] = set()


@dataclass
class Row:
    """What one phase did with memory and time; one line of ``phases.jsonl``. Bytes and seconds.

    Attributes:
        phase: its name; ``within`` is the phase around it.
        rank: whose memory this is.
        inputs: what went in.
        before, after: readings at its ends.
        peak: most bytes held at once, of the counter that the probe can follow.
        released: from the peak to the end; None where the peak is only that of the whole process.
        seconds: how long it took, the ledger's own work aside.
        verdict: ``released``, ``kept ...``, ``unproven ...``, ``held on purpose``, ``stopped: ...`` or
            ``failed: ...``.
        survivors: what was made inside and still lives, with its holders.
        unnamed: allocated bytes more than before that no survivor explains: autograd, C++, libraries.
        tolerance: how many of those are accepted, and ``warm`` whether the phase ran in this process before.
        handed: bytes of tensors that were handed over.
        reused: whether an earlier result was found instead.
        damaged: items of an earlier result that were damaged and made anew.
        process: the row of the process that did the work, when it was another one.
    """

    phase: str
    within: str = ""
    rank: int = 0
    inputs: Mapping[str, Any] = field(default_factory=dict)
    before: Reading | None = None
    after: Reading | None = None
    peak: int = 0
    released: int | None = None
    seconds: float = 0.0
    verdict: str = ""
    survivors: Sequence[Held] = ()
    unnamed: int = 0
    tolerance: int = 0
    warm: bool = False
    handed: int = 0
    reused: bool = False
    damaged: int = 0
    process: Mapping[str, Any] | None = None
    _handed_over: list[Any] = field(default_factory=list, repr=False)

    def hand_over(self, value: Value) -> Value:
        """Take tensors out of the phase: copies on the CPU, without a graph, that own just their bytes.

        Args:
            value: a tensor, or lists, tuples and mappings of such. Anything else is refused, since it may
                hold what the phase was to give back.

        Raises:
            InternalError: something that is neither tensor, container nor plain value.
        """
        taken: Value = _on_host(value, self._handed_over)
        return taken

    def document(self) -> dict[str, Any]:
        """The row as JSON."""
        facts = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        for name in ("before", "after"):
            facts[name] = vars(facts[name]) if facts[name] is not None else None
        survivors = [held.document() for held in self.survivors]
        return {**facts, "inputs": dict(self.inputs), "survivors": survivors}


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
        row.seconds = self._clock() - here.started
        self._note_peak()
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
            row.verdict = _verdict(row)
        if not row.reused:
            self._warm.add(row.phase)

    def _name(self, row: Row, scope: Scope) -> None:
        with self._census.thawed():
            handed = [reference for reference, _ in row._handed_over]
            row.survivors = name_holders(scope, self._probe.device, handed=handed, machinery=(__file__,))
        row.unnamed = max(0, row.unnamed - sum(held.device_bytes for held in row.survivors))

    def _read(self, row: Row) -> None:
        """Read memory at the end; what is more than at the beginning and was not handed over is unnamed yet."""
        assert row.before is not None
        self._probe.release()
        row.after = self._probe.read()
        row.handed = sum(size for _, size in row._handed_over)
        on_host = sum(size for reference, size in row._handed_over if reference() is not None)
        counted = on_host if self._probe.device == "cpu" else 0
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


def _verdict(row: Row) -> str:
    assert row.after is not None
    survivors = _without_constants(row.survivors)
    if survivors:
        total = sum(held.bytes for held in survivors)
        told = [_told(held) for held in survivors[:MOST_HOLDERS_TOLD]]
        more = len(survivors) - len(told)
        rest = f"; and {more} more" if more else ""
        unnamed = f"; and {_unnamed(row)}" if row.unnamed > row.tolerance else ""
        return f"kept {memory_text(total)}: {'; '.join(told)}{rest}{unnamed}"
    if not row.after.allocated:
        return "unproven: no tensor that Python knows was kept, and this system does not count allocated bytes"
    return f"kept {_unnamed(row)}" if row.unnamed > row.tolerance else "released"


def _without_constants(survivors: Sequence[Held]) -> Sequence[Held]:
    """Survivors that make a verdict: not the few constants of modules that were first imported inside.

    Libraries keep tables and default values as tensors (bitsandbytes and peft do). They stand in the row all
    the same, and a module that is imported already hides nothing.
    """
    constants = [held for held in survivors if held.imported and not held.graphs]
    if sum(held.bytes for held in constants) > CONSTANTS_BYTES:
        return survivors
    return [held for held in survivors if held not in constants]


def _told(held: Held) -> str:
    first = held.examples[0]
    if held.tensors == 1:
        what, name = f"{first['dtype']} {first['shape']}, {memory_text(held.bytes)}", first["path"]
    else:
        what, name = f"{held.tensors} tensors, {memory_text(held.bytes)}", held.owner
        what = f"{held.kind} of {what}" if held.kind else what
    graphs = f", {held.graphs} of them with autograd graphs" if held.graphs else ""
    return f"{name} ({what}{graphs})"


def _unnamed(row: Row) -> str:
    return f"{memory_text(row.unnamed)} that no Python object owns (autograd graphs, C++ or a library)"


def _on_host(value: Any, taken: list[Any]) -> Any:
    if isinstance(value, Tensor):
        tensor = value.detach().to("cpu")
        if tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size():
            tensor = tensor.clone()  # a view would keep all it is a view of
        taken.append((weakref.ref(tensor), tensor.untyped_storage().nbytes()))
        return tensor
    if isinstance(value, Mapping):
        return {_plain(key): _on_host(each, taken) for key, each in value.items()}
    if isinstance(value, list | tuple):
        moved = [_on_host(each, taken) for each in value]
        return moved if isinstance(value, list) else tuple(moved)
    return _plain(value)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise InternalError(
        f"a {type(value).__name__} was handed over", expected="tensors, numbers, text, and containers of such"
    )
