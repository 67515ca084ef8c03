"""Owns the row of one phase: what it did with memory and time, what it hands over, and its verdict in words.

This file must not know how memory is measured, nor when a phase begins and ends: ``ledger.py`` does.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.quantities import MIB, memory_text
from app_trainer_sdk.training.holders import Held
from app_trainer_sdk.training.memory import Reading

Value = TypeVar("Value")

CONSTANTS_BYTES = MIB
MOST_HOLDERS_TOLD = 3


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
    _handed_over: list[tuple[weakref.ref[Tensor], int]] = field(default_factory=list, repr=False)

    def hand_over(self, value: Value) -> Value:
        """Take tensors out of the phase: copies on the CPU, without a graph, that own just their bytes.

        Args:
            value: a tensor, or lists, tuples and mappings of such. Anything else is refused, since it may
                hold what the phase was to give back.

        Raises:
            InternalError: something that is neither tensor, container nor plain value.
        """
        taken: Value = _on_host(value, self._handed_over)
        self.handed = sum(size for _, size in self._handed_over)
        return taken

    def handed_over(self) -> list[Any]:
        """Weak references to what was handed over."""
        return [reference for reference, _ in self._handed_over]

    def handed_and_alive(self) -> int:
        """Bytes of what was handed over and still lives, on the CPU."""
        return sum(size for reference, size in self._handed_over if reference() is not None)

    def document(self) -> dict[str, Any]:
        """The row as JSON."""
        facts = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        for name in ("before", "after"):
            facts[name] = vars(facts[name]) if facts[name] is not None else None
        survivors = [held.document() for held in self.survivors]
        return {**facts, "inputs": dict(self.inputs), "survivors": survivors}


def verdict(row: Row, *, counts: bool) -> str:
    """What a phase that promised to release did, in words: ``released``, ``kept ...`` or ``unproven ...``.

    Args:
        row: the phase's row.
        counts: whether allocated bytes are counted here.
    """
    survivors = _without_constants(row.survivors)
    if survivors:
        total = sum(held.bytes for held in survivors)
        told = [_told(held) for held in survivors[:MOST_HOLDERS_TOLD]]
        more = len(survivors) - len(told)
        rest = f"; and {more} more" if more else ""
        unnamed = f"; and {_unnamed(row)}" if row.unnamed > row.tolerance else ""
        return f"kept {memory_text(total)}: {'; '.join(told)}{rest}{unnamed}"
    if not counts:
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


def _on_host(value: Any, taken: list[tuple[weakref.ref[Tensor], int]]) -> Any:
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
