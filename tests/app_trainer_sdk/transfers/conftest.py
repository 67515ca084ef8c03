"""A receiver that tests of uploads share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from receivers import Receiver


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A listener with its store."""
    with Receiver(tmp_path / "desk") as there:
        yield there
