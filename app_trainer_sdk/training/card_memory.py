"""Owns what a card has to hold for a way of training, term by term: predictions never mixed with declarations.

This file must not know how memory is predicted, nor how a way is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from app_trainer_sdk.gpus import Card
from app_trainer_sdk.training.predict import Prediction

#: What cards can share among each other.
STATE = ("parameters", "gradients", "optimizer_state", "average")


def memory_terms(
    prediction: Prediction, card: Card, *, replicas: int = 1, factor: float | None = None
) -> dict[str, int]:
    """The terms of what is needed, and what is left of the card.

    Args:
        prediction: of the way of training.
        card: the card.
        replicas: data-parallel ranks.
        factor: what a pilot measured on this card for each predicted byte, where one did.
    """
    peak, rounding = prediction.peak.total, prediction.peak.rounding
    step = prediction.phases.get("step")
    # DDP keeps a second copy of the gradients, in buckets that are sent as one.
    exchange = step.by_owner["gradients"] if step is not None and replicas > 1 else 0
    held = peak + rounding + card.library_bytes
    correction = 0 if factor is None else round(held * (factor - 1))
    headroom = card.headroom(peak + exchange + correction)
    needed = held + exchange + correction + card.context_bytes + headroom
    return {
        "peak_bytes": peak, "rounding_bytes": rounding, "exchange_bytes": exchange,
        "library_bytes": card.library_bytes, "correction_bytes": correction,
        "context_bytes": card.context_bytes, "headroom_bytes": headroom, "needed_bytes": needed,
        "available_bytes": card.memory_bytes, "left_bytes": card.memory_bytes - needed,
    }  # fmt: skip


def sharding(prediction: Prediction, terms: Mapping[str, int]) -> dict[str, Any]:
    """How many cards would have to share weights, gradients and optimizer state; None where no number helps."""
    step = prediction.phases["step"].by_owner
    state = sum(step[owner] for owner in STATE)
    left = terms["available_bytes"] - max(0, terms["needed_bytes"] - state)
    return {"state_bytes": state, "cards": math.ceil(state / left) if left > 0 else None}
