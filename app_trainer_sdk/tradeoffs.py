"""Owns the choices that trade memory or start-up time for speed: 8-bit state and compilation, each with why.

Pure arithmetic over plain numbers. It must not know how the numbers came about: who probed, who measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from app_trainer_sdk.quantities import gib_text

#: Bytes of AdamW's two moments for each parameter: in 32 bits, and in 8 with a scale for each block of 256.
ADAMW_BYTES = 8.0
ADAMW_8BIT_BYTES = 2.0 + 2 * 4 / 256
#: 8-bit state pays once 32-bit state would take more of the card than this. With fp32 weights and gradients
#: the state is half of what a full fine-tune holds, so beyond a quarter half the card is gone before the
#: first activation.
EIGHT_BIT_SHARE = 0.25


@dataclass(frozen=True)
class CompileTimes:
    """What a pilot measured: seconds to compile, and of an update both ways; ``source`` says which pilot."""

    compile_seconds: float
    eager_seconds: float
    compiled_seconds: float
    source: str = "a pilot"


def trained_parameters(method: str, parameters: int) -> int | None:
    """How many of a model's ``parameters`` a method trains; None for adapters and heads, few and not in the
    catalog.

    A planner that builds the model can give the real number instead.
    """
    return None if method in ("lora", "head") else parameters


def choose_eight_bit(
    *, optimizer: str, trained: int | None, memory_bytes: int, problem: str = ""
) -> tuple[bool, str]:
    """Whether AdamW's state is kept in 8 bits, and why.

    Args:
        optimizer: ``adamw`` or ``sgd``.
        trained: parameters that train; None for adapters and heads, 0 when unknown.
        memory_bytes: the card's memory; 0 on the CPU.
        problem: why 8-bit steps do not work on this device; empty while nothing is known against them.
    """
    if optimizer != "adamw":
        return False, "only AdamW has 8-bit state"
    if not memory_bytes:
        return False, "on the CPU memory is cheap and 8-bit steps are many times slower"
    if trained is None:
        return False, "adapters or a head train, whose state is small"
    if not trained:
        return False, "32-bit state is faster, and the model's size is not known"
    wide, share = trained * ADAMW_BYTES, trained * ADAMW_BYTES / memory_bytes
    told = f"32-bit state is {gib_text(wide)}, {share:.0%} of the card's {gib_text(memory_bytes)}"
    if share <= EIGHT_BIT_SHARE:
        return False, f"{told}: at most {EIGHT_BIT_SHARE:.0%}, and it is faster"
    narrow = gib_text(trained * ADAMW_8BIT_BYTES)
    if problem:
        return False, f"{told}; 8-bit state would be {narrow}, but does not work here: {problem}"
    return True, f"{told}: above {EIGHT_BIT_SHARE:.0%}; 8-bit state is {narrow}"


def choose_compile(times: CompileTimes | None, updates: int) -> tuple[bool, str]:
    """Whether compiling pays for ``updates`` updates, and why; without measured times it does not."""
    if times is None:
        return False, "compile time is not measured here, so it cannot be known to pay"
    saved = times.eager_seconds - times.compiled_seconds
    told = f"an update takes {times.eager_seconds:.3g} s, compiled {times.compiled_seconds:.3g} s"
    if saved <= 0:
        return False, f"{told}: compiling never pays; {times.source} measured it"
    told += f", and compiling {times.compile_seconds:.3g} s: it pays after"
    told += f" {round(times.compile_seconds / saved):,} updates of the {updates:,} to make;"
    told += f" {times.source} measured it"
    return updates * saved > times.compile_seconds, told
