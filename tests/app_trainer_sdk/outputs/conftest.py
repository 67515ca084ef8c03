"""A receiver for what a job uploads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from receivers import Receiver


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cache of the test's own, each job's first attempt, and little patience."""
    monkeypatch.delenv("APP_TRAINER_ATTEMPT", raising=False)
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "1")


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A listener with its store."""
    with Receiver(tmp_path / "desk") as there:
        yield there
