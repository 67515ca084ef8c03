"""A disk that is too small is told before the first byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from app_trainer_sdk.errors import DiskFull
from app_trainer_sdk.transfers.space import check_space, free_bytes


def test_room_for_what_comes_its_reserve_and_two_percent(tmp_path: Path):
    """One byte less is 73, with what is needed and where else it could go."""
    check_space(tmp_path, 1_000_000, reserve=500_000, free=lambda folder: 1_520_000)
    with pytest.raises(DiskFull, match=r"1\.0 MB to come") as caught:
        check_space(tmp_path, 1_000_000, reserve=500_000, free=lambda folder: 1_519_999)

    assert caught.value.code == 73
    assert "APP_TRAINER_CACHE_DIR" in str(caught.value)


def test_nothing_to_come_needs_no_room(tmp_path: Path):
    """A finished cache on a full disk is used."""
    check_space(tmp_path, 0, reserve=10**15, free=lambda folder: 0)


def test_a_folder_that_is_not_there_yet(tmp_path: Path):
    """The disk is that of the nearest folder above."""
    assert free_bytes(tmp_path / "a" / "b") > 0
