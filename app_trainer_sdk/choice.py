"""Owns the choice of the knobs that trade memory for time: fit first, then the fastest that fits.

Pure functions over plain numbers, at a constant global batch: what is predicted and on which card comes in as
a function. Nothing that was asked for explicitly is changed. This file must not know how a prediction is made.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.values import JSON

#: A block computed again costs a forward pass, a third of forward and backward.
RECOMPUTING = 4 / 3
#: Reading and writing 8-bit state costs a little time in each update.
EIGHT_BIT = 1.02
#: What a microbatch costs whatever its size (launches, small matrices), in rows.
ROWS_OF_A_LAUNCH = 1.0
#: Larger microbatches gain less than two hundredths more.
MOST_ROWS = 64

KNOBS = ("microbatch", "gradient_accumulation_steps", "gradient_checkpointing", "optim_8bit")


@dataclass(frozen=True)
class Candidate:
    """One way to make the same update."""

    microbatch: int
    gradient_accumulation_steps: int
    gradient_checkpointing: bool
    optim_8bit: bool

    @property
    def relative_time(self) -> float:
        """Time of an update against one large microbatch without savings; declared, until a pilot measures."""
        time = 1 + ROWS_OF_A_LAUNCH / self.microbatch
        time *= RECOMPUTING if self.gradient_checkpointing else 1.0
        return time * (EIGHT_BIT if self.optim_8bit else 1.0)

    def knobs(self) -> dict[str, JSON]:
        """The settings it stands for."""
        return dataclasses.asdict(self)

    def is_of_the_kind(self, other: Candidate) -> bool:
        """Whether both differ in nothing but the size of a microbatch."""
        kind = (self.gradient_checkpointing, self.optim_8bit)
        return kind == (other.gradient_checkpointing, other.optim_8bit)


@dataclass(frozen=True)
class Considered:
    """What became of one candidate.

    Attributes:
        candidate: the way.
        needed: bytes it takes on the card, all terms together; None when a smaller one did not fit already.
        verdict: one sentence.
    """

    candidate: Candidate
    needed: int | None
    verdict: str


def list_candidates(
    settings: Hyperparameters, share: int, *, minimum_rows: int = 1, coupled_rows: bool = False,
    can_recompute: bool = True, can_shrink_state: bool = True,
) -> list[Candidate]:  # fmt: skip
    """Every way to make an update of ``share`` rows on one rank that respects what was asked, fastest first.

    Args:
        settings: as asked, with ``auto`` where anything goes.
        share: rows of one rank in one update.
        minimum_rows: least rows of a microbatch.
        coupled_rows: whether an update is never split.
        can_recompute: whether the model names blocks to recompute.
        can_shrink_state: whether 8-bit state is possible and of any use.
    """
    sizes = _sizes(settings, share, minimum_rows, coupled_rows)
    recompute = _either(settings.gradient_checkpointing, possible=can_recompute)
    shrink = _either(settings.optim_8bit, possible=can_shrink_state)
    found = [
        Candidate(rows, share // rows, lean, small) for rows in sizes for lean in recompute for small in shrink
    ]
    return sorted(found, key=lambda each: (each.relative_time, each.optim_8bit, each.gradient_checkpointing))


def choose(
    candidates: Sequence[Candidate], needs: Callable[[Candidate], int], available: int
) -> tuple[Candidate | None, list[Considered]]:
    """The first candidate that fits, and what was considered on the way.

    The very first is tried at once, since most jobs fit. After that the smallest microbatch of each kind
    (recomputation, state) is tried before any larger one: when it does not fit, neither do they, and nothing is
    predicted for them.

    Args:
        candidates: in the order of preference.
        needs: bytes that a candidate takes on the card; asked again for the same one.
        available: bytes of the card.
    """
    considered: list[Considered] = []
    for each in candidates:
        smallest = min(filter(each.is_of_the_kind, candidates), key=lambda other: other.microbatch)
        if considered and smallest != each and needs(smallest) > available:
            verdict = f"does not fit, since {describe(smallest)} does not"
            considered.append(Considered(each, None, verdict))
            continue
        needed = needs(each)
        fits = needed <= available
        verdict = "fits, and is the fastest that does" if fits else "does not fit"
        considered.append(Considered(each, needed, verdict))
        if fits:
            return each, considered
    return None, considered


def freed(settings: Hyperparameters) -> Hyperparameters:
    """The settings with every knob that trades memory for time open again; the global batch stays."""
    return settings.model_copy(update=dict.fromkeys(KNOBS, "auto"))


def changes(settings: Hyperparameters, candidate: Candidate) -> dict[str, Any]:
    """The knobs of a candidate that contradict what was asked."""
    asked = {name: getattr(settings, name) for name in KNOBS}
    return {name: value for name, value in candidate.knobs().items() if asked[name] not in ("auto", value)}


def describe(candidate: Candidate) -> str:
    """A candidate in words."""
    words = f"{candidate.microbatch} × {candidate.gradient_accumulation_steps}"
    words += " with recomputation" if candidate.gradient_checkpointing else ""
    return words + (" and 8-bit state" if candidate.optim_8bit else "")


def _sizes(settings: Hyperparameters, share: int, minimum_rows: int, coupled_rows: bool) -> list[int]:
    if coupled_rows:
        return [share]
    if settings.microbatch != "auto":
        return [settings.microbatch]
    if settings.gradient_accumulation_steps != "auto":
        return [share // settings.gradient_accumulation_steps]
    divisors = [rows for rows in range(1, share + 1) if share % rows == 0 and rows >= minimum_rows]
    return [rows for rows in divisors if rows <= MOST_ROWS] or divisors[:1] or [share]


def _either(asked: Any, *, possible: bool) -> Sequence[bool]:
    if asked != "auto":
        return (bool(asked),)
    return (False, True) if possible else (False,)
