"""What a card has to hold: every term by itself, and their sum."""

from __future__ import annotations

from app_trainer_sdk.gpus import Card
from app_trainer_sdk.quantities import GIB, MIB
from app_trainer_sdk.training.allocations import OWNERS, Held
from app_trainer_sdk.training.card_memory import memory_terms, sharding
from app_trainer_sdk.training.dry_run import Size
from app_trainer_sdk.training.predict import Prediction

CARD = Card("small", "A small card", 4 * GIB, "9.0", True, 100 * MIB, 10 * MIB)
PREDICTION = Prediction(
    {
        "forward": Held(dict.fromkeys(OWNERS, 0) | {"parameters": GIB}, 5 * MIB),
        "step": Held(dict.fromkeys(OWNERS, 0) | {"parameters": GIB, "gradients": GIB // 2}, 7 * MIB),
    },
    Size(1, 1, 1), 0, (), "cuda",
)  # fmt: skip


def test_terms_add_up():
    """What was predicted, and what the card declares, side by side."""
    terms = memory_terms(PREDICTION, CARD)
    parts = [terms[f"{name}_bytes"] for name in ("peak", "rounding", "library", "context", "headroom")]

    assert parts[:4] == [GIB + GIB // 2, 7 * MIB, 10 * MIB, 100 * MIB]
    assert terms["headroom_bytes"] == CARD.headroom(GIB + GIB // 2)
    assert terms["needed_bytes"] == sum(parts)
    assert terms["left_bytes"] == CARD.memory_bytes - sum(parts)


def test_ranks_exchange_a_copy_of_the_gradients():
    """From the step on, which an answer without training does not make."""
    alone, together = (memory_terms(PREDICTION, CARD, replicas=count) for count in (1, 2))
    forward = Prediction({"forward": PREDICTION.phases["forward"]}, Size(1, 1, 1), 0, (), "cuda")

    assert (alone["exchange_bytes"], together["exchange_bytes"]) == (0, GIB // 2)
    assert memory_terms(forward, CARD, replicas=2)["exchange_bytes"] == 0


def test_a_measured_factor_is_a_term_of_its_own():
    """Of what a pilot can see: predicted, rounded and libraries."""
    terms = memory_terms(PREDICTION, CARD, factor=1.5)

    assert terms["correction_bytes"] == (GIB + GIB // 2 + 17 * MIB) // 2
    assert terms["peak_bytes"] == memory_terms(PREDICTION, CARD)["peak_bytes"]


def test_state_is_shared_out_until_it_fits():
    """By as many cards as leave room for the rest; where the rest alone is too much, by none."""
    state = GIB + GIB // 2
    lacking = {"needed_bytes": 3 * GIB, "available_bytes": 2 * GIB}

    assert sharding(PREDICTION, lacking) == {"state_bytes": state, "cards": 3}
    assert sharding(PREDICTION, {**lacking, "available_bytes": GIB})["cards"] is None
