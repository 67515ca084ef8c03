"""What is asked of a download: parts that end together, and a name for files in the making."""

from __future__ import annotations

import pytest

from app_trainer_sdk.quantities import MIB
from app_trainer_sdk.transfers.partial import part_lengths
from app_trainer_sdk.transfers.wanted import Patience, Wanted


@pytest.mark.parametrize(
    "size",
    [1, 5 * MIB, 33 * MIB, 256 * MIB, 272 * MIB, 300 * MIB + 1, 1 << 30, (8 << 30) - 1, 9 << 30, 70 << 30],
)  # fmt: skip
def test_parts_are_alike_and_all_connections_end_together(size: int):
    """Seventeen parts for eight connections would take three rounds, of which one is nearly empty."""
    patience = Patience()
    part = patience.part_of(size)
    lengths = part_lengths(size, part)
    rounds = -(-len(lengths) // patience.connections)

    assert 4 * MIB <= part <= (32 if size >= 8 << 30 else 16) * MIB
    if size >= 128 * MIB:
        assert rounds >= 4
        assert rounds * part <= 1.01 * size / patience.connections + MIB // 16


def test_a_part_size_that_is_said_is_taken():
    assert Patience(part_bytes=1000).part_of(1 << 40) == 1000


def test_a_file_is_named_by_its_digest_or_by_its_places():
    """Fresh signatures name the same file; another size or another place does not."""
    places = [Wanted("f", (f"https://a/f?sig={sig}",), size).key for sig, size in ((1, 5), (2, 5), (1, 6))]

    assert Wanted("f", ("https://a/f",), 5, "0" * 64).key == "0" * 64
    assert places[0] == places[1] != places[2]
