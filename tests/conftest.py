"""Owns how the suite runs: hypothesis without time limits, and files that take minutes before the others."""

from __future__ import annotations

import gc

import pytest
from hypothesis import HealthCheck, settings

# Its time limits say how busy the machine is, and nothing of the code. Half of its usual examples: the suite
# has eight minutes.
settings.register_profile(
    "shared", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared")

#: Files are dealt to processes in this order: one of these at the end would leave the other process idle.
LONGEST = (
    "test_readme.py", "test_kills.py", "test_compiled.py", "test_memory.py", "test_team.py", "test_pilot.py",
    "test_trainer.py", "test_run.py",
    "test_killed.py",  # finds the weights that the README's job has converted
)  # fmt: skip


# Collecting the tests imports torch, transformers and much else: a million objects that live until the end.
gc.disable()


def pytest_collection_finish() -> None:
    """Garbage is collected from here on, among what the tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; everything else stays in its order."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))
