"""Amounts as people read them."""

from __future__ import annotations

import pytest

from app_trainer_sdk.quantities import GIB, MIB, gib_text, memory_text, seconds_text, size_text


def test_sizes_are_shown_as_networks_are_sold():
    """Decimal units."""
    assert [size_text(each) for each in (0, 999, 1000, 3_400_000, 12e9, 5e12)] == [
        "0 B", "999 B", "1.0 kB", "3.4 MB", "12.0 GB", "5000.0 GB",
    ]  # fmt: skip


def test_memory_is_shown_in_binary_units():
    """Small amounts to the byte, and a card's in its own unit."""
    assert [memory_text(size) for size in (3, 2048, 60 * MIB, -2 * MIB)] == [
        "3 bytes", "2.0 KiB", "60.0 MiB", "-2.0 MiB",
    ]  # fmt: skip
    assert gib_text(21.25 * GIB) == "21.2 GiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (7.4, "7 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_seconds_for_people(seconds: float, text: str):
    """Two units at most."""
    assert text == seconds_text(seconds)
