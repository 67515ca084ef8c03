"""What pays for memory or start-up time, decided by arithmetic and told with the numbers."""

from __future__ import annotations

import pytest

from app_trainer_sdk.tradeoffs import CompileTimes, choose_compile, choose_eight_bit, trained_parameters

CARD = 24 << 30


@pytest.mark.parametrize(
    ("facts", "chosen", "why"),
    [
        ({"optimizer": "sgd"}, False, "only AdamW has 8-bit state"),
        ({"memory_bytes": 0}, False, "on the CPU memory is cheap"),
        ({"trained": None}, False, "adapters or a head train, whose state is small"),
        ({"trained": 0}, False, "the model's size is not known"),
        ({"trained": 135_000_000}, False, "32-bit state is 1.0 GiB, 4% of the card's 24.0 GiB: at most 25%"),
        ({}, True, "32-bit state is 11.2 GiB, 47% of the card's 24.0 GiB: above 25%; 8-bit state is 2.8 GiB"),
        (
            {"problem": "ImportError: no library"}, False,
            "47% of the card's 24.0 GiB; 8-bit state would be 2.8 GiB, but does not work here: ImportError",
        ),
    ],
)  # fmt: skip
def test_eight_bits_where_the_state_is_large(facts, chosen, why):
    """G4: size and device decide; where 8 bits do not work the larger memory and the reason are told."""
    asked = {"optimizer": "adamw", "trained": 1_500_000_000, "memory_bytes": CARD, **facts}
    choice, told = choose_eight_bit(**asked)

    assert choice is chosen
    assert why in told


def test_a_quarter_of_the_card_is_the_limit():
    """At exactly a quarter the state stays in 32 bits, one parameter more and it does not."""
    quarter = CARD // 4 // 8
    choices = [
        choose_eight_bit(optimizer="adamw", trained=quarter + more, memory_bytes=CARD) for more in (0, 1)
    ]

    assert [choice for choice, _ in choices] == [False, True]


def test_what_a_method_trains():
    """Adapters are few and not in the catalog; every other method is counted with the whole model."""
    assert trained_parameters("lora", 7) is None
    assert trained_parameters("head", 7) is None
    assert trained_parameters("full", 7) == 7


@pytest.mark.parametrize(
    ("compiled", "updates", "chosen", "why"),
    [
        (0.08, 1_000, False, "pays after 3,000 updates of the 1,000 to make"),
        (0.08, 10_000, True, "pays after 3,000 updates of the 10,000 to make"),
        (0.12, 10**9, False, "compiled 0.12 s: compiling never pays"),
    ],
)
def test_compiling_pays_past_break_even(compiled, updates, chosen, why):
    """F2: 60 s of compiling and 0.10 against 0.08 s an update break even at 3,000 updates."""
    choice, told = choose_compile(CompileTimes(60.0, 0.10, compiled), updates)

    assert choice is chosen
    assert why in told


def test_nothing_measured_is_nothing_compiled():
    """Without a pilot nobody knows whether compiling pays."""
    assert choose_compile(None, 10**6) == (
        False, "compile time is not measured here, so it cannot be known to pay",
    )  # fmt: skip
