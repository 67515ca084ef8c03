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
#: Matrix products in fp32 leave a card's tensor cores idle.
FULL_PRECISION = 4.0
#: What a microbatch costs whatever its size (launches, small matrices), in rows.
ROWS_OF_A_LAUNCH = 1.0
#: Larger microbatches gain less than two hundredths more.
MOST_ROWS = 64

#: The microbatch goes with its number in an update.
SPLIT = ("microbatch", "gradient_accumulation_steps")
KNOBS = (*SPLIT, "gradient_checkpointing", "optim_8bit", "mixed_precision")


@dataclass(frozen=True)
class Candidate:
    """One way to make the same update."""

    microbatch: int
    gradient_accumulation_steps: int
    gradient_checkpointing: bool
    optim_8bit: bool
    mixed_precision: str = "bf16"

    @property
    def relative_time(self) -> float:
        """Time of an update against one large microbatch without savings; declared, until a pilot measures."""
        time = 1 + ROWS_OF_A_LAUNCH / self.microbatch
        time *= RECOMPUTING if self.gradient_checkpointing else 1.0
        time *= FULL_PRECISION if self.mixed_precision == "no" else 1.0
        return time * (EIGHT_BIT if self.optim_8bit else 1.0)

    def knobs(self) -> dict[str, JSON]:
        """The settings it stands for."""
        return dataclasses.asdict(self)

    @property
    def leanness(self) -> tuple[bool, bool, bool, int]:
        """What sorts the ways of one update by the memory they save, the leanest first."""
        fp32 = self.mixed_precision == "no"
        return (fp32, not self.gradient_checkpointing, not self.optim_8bit, self.microbatch)

    def is_of_the_kind(self, other: Candidate) -> bool:
        """Whether both differ in nothing but the size of a microbatch.

        One microbatch in an update is a kind of its own: it meets no gradients of another, and may take less
        than smaller ones that do.
        """
        return self.leanness[:-1] == other.leanness[:-1] and self.is_whole == other.is_whole

    @property
    def is_whole(self) -> bool:
        """Whether one microbatch makes the update."""
        return self.gradient_accumulation_steps == 1

    def speaks_for(self, other: Candidate) -> bool:
        """Whether the other does not fit either where this one does not.

        Smaller microbatches speak for larger ones; of fp32, which is looked at last, the leanest for all.
        """
        in_fp32 = self.mixed_precision == other.mixed_precision == "no" and self.is_whole == other.is_whole
        return in_fp32 or self.is_of_the_kind(other)

    def with_other_state(self) -> Candidate:
        """The way that differs in nothing but the bits of the optimizer's state."""
        return dataclasses.replace(self, optim_8bit=not self.optim_8bit)


@dataclass(frozen=True)
class Considered:
    """What became of one candidate.

    Attributes:
        candidate: the way.
        needed: bytes it takes on the card, all terms together.
        verdict: one sentence.
        at_least: whether it takes more: the bytes are those of a smaller one, which did not fit already.
    """

    candidate: Candidate
    needed: int
    verdict: str
    at_least: bool = False


def list_candidates(
    settings: Hyperparameters, share: int, *, minimum_rows: int = 1, coupled_rows: bool = False,
    can_recompute: bool = True, can_shrink_state: bool = True, precision: str = "bf16",
) -> list[Candidate]:  # fmt: skip
    """Every way to make an update of ``share`` rows on one rank that respects what was asked, fastest first.

    Args:
        settings: as asked, with ``auto`` where anything goes.
        share: rows of one rank in one update.
        minimum_rows: least rows of a microbatch.
        coupled_rows: whether an update is never split.
        can_recompute: whether the model names blocks to recompute.
        can_shrink_state: whether 8-bit state is possible and of any use.
        precision: what the card computes fastest in; fp32 is considered beside it when nothing was asked for.
    """
    sizes = _sizes(settings, share, minimum_rows, coupled_rows)
    recompute = _either(settings.gradient_checkpointing, possible=can_recompute)
    shrink = _either(settings.optim_8bit, possible=can_shrink_state)
    asked = settings.mixed_precision
    precisions = dict.fromkeys((precision, "no")) if asked == "auto" else (asked,)
    found = [
        Candidate(rows, share // rows, lean, small, dtype)
        for rows in sizes for lean in recompute for small in shrink for dtype in precisions
    ]  # fmt: skip
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
        least = min(filter(each.speaks_for, candidates), key=lambda other: other.leanness)
        if considered and least != each and (bound := needs(least)) > available:
            verdict = f"does not fit, since {describe(least)} does not"
            considered.append(Considered(each, bound, verdict, at_least=True))
            continue
        needed = needs(each)
        fits = needed <= available
        verdict = "fits, and is the fastest that does" if fits else "does not fit"
        considered.append(Considered(each, needed, verdict))
        if fits:
            return each, considered
    return None, considered


def freed(settings: Hyperparameters, knobs: Sequence[str] = KNOBS) -> Hyperparameters:
    """The settings with knobs that trade memory for time open again; the global batch stays."""
    return settings.model_copy(update=dict.fromkeys(knobs, "auto"))


def changes(settings: Hyperparameters, candidate: Candidate) -> dict[str, Any]:
    """The knobs of a candidate that contradict what was asked."""
    asked = {name: getattr(settings, name) for name in KNOBS}
    return {name: value for name, value in candidate.knobs().items() if asked[name] not in ("auto", value)}


def describe(candidate: Candidate) -> str:
    """A candidate in words."""
    words = f"{candidate.microbatch} × {candidate.gradient_accumulation_steps}"
    words += " with recomputation" if candidate.gradient_checkpointing else ""
    words += " and 8-bit state" if candidate.optim_8bit else ""
    return words + (" in fp32" if candidate.mixed_precision == "no" else "")


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
