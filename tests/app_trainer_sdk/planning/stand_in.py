"""The process that plans, as a function that knows its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app_trainer_sdk.job import Job
from app_trainer_sdk.quantities import GIB

JOB = Job.model_validate({"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"})


class Planning:
    """Answers as the planning process does, and keeps what it was asked.

    Args:
        settings: what it chooses.
        fits: whether that fits the card.
        needed: bytes that it takes.
        saved: bytes of a checkpoint.
    """

    def __init__(
        self, settings: Mapping[str, Any], *, fits: bool = True, needed: int = 20 * GIB, saved: int = 3 * GIB
    ) -> None:
        self.requests: list[Mapping[str, Any]] = []
        self._fits, self._needed, self._saved = fits, needed, saved
        self._settings = {
            name: {"requested": "auto", "effective": value, "why": "w"} for name, value in settings.items()
        }

    def __call__(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self.requests.append(request)
        (card,) = request["cards"]
        plan = {
            "card": card, "fits": self._fits, "settings": self._settings, "considered": [{"verdict": "fits"}],
            "memory": {"needed_bytes": self._needed, "available_bytes": card["memory_bytes"]},
            "grade": "predicted, CPU kernels", "update_seconds": None,
            "prediction": {"checkpoint_bytes": self._saved},
            "nearest": {"settings": {"microbatch": 1}, "card": "H200"}, "sharding": {"cards": 2},
        }  # fmt: skip
        return {"cards": [plan]}
