"""Owns how fast a start trains: what is told of time with its progress. It must not know who is told."""

from __future__ import annotations

from collections import deque
from typing import Any

from app_trainer_sdk.values import StepInfo

#: Updates of which the percentiles are.
WINDOW = 256


class Pace:
    """Times of this start's updates.

    Args:
        updates: the plan's, of which the time left follows.
    """

    def __init__(self, updates: int) -> None:
        self._updates = updates
        self._recent: deque[tuple[float, int]] = deque(maxlen=WINDOW)
        self._made = self._waited = 0.0
        self._began: tuple[float, int] | None = None

    def add(self, info: StepInfo, seconds: float) -> None:
        """Take one update, whose loss was judged on the host, and how long it took."""
        self._recent.append((seconds, info.examples))
        self._made += seconds
        self._waited += info.data_seconds + info.data_parts.get("transfer", 0.0)

    def facts(self, now: float, step: int) -> dict[str, Any]:
        """What progress tells after update ``step``, at ``now`` by the clock of the updates."""
        rate, left = self._rate(now, step)
        seconds = sorted(each for each, _ in self._recent)
        examples = sum(each for _, each in self._recent)
        return {
            "updates_per_second": rate, "eta_seconds": left,
            "data_wait_share": min(1.0, self._waited / max(self._made, 1e-9)),
            "seconds_p50": _percentile(seconds, 50), "seconds_p95": _percentile(seconds, 95),
            "examples_per_second": examples / max(sum(seconds), 1e-9),
        }  # fmt: skip

    def _rate(self, now: float, step: int) -> tuple[float, float | None]:
        """Updates a second and seconds left, by this start's updates after its first, which warms up."""
        if self._began is None:
            self._began = now, step
            return 1.0 / max(self._recent[-1][0], 1e-9), None
        since, first = self._began
        if step == first:
            return 0.0, None
        rate = (step - first) / max(now - since, 1e-9)
        return rate, (self._updates - step) / rate


def _percentile(ordered: list[float], share: int) -> float:
    """The least of the values that ``share`` percent do not exceed."""
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]
