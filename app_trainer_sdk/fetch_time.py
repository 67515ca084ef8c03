"""Owns what a dataset says of fetching: which part of reading a row was waiting for bytes, not decoding them.

Nobody outside can tell the two apart. This file must not know what is fetched or who sums it up.
"""

from __future__ import annotations

import threading
import time
from typing import Self


class _Spent(threading.local):
    seconds = 0.0


_spent = _Spent()


class fetching:  # noqa: N801 - used as a function
    """Inside, a dataset's ``item`` gets bytes: from a disk, an archive or the network.

    The run tells this time apart from decoding. It counts in the thread that reads the row; blocks do not lie
    inside each other.
    """

    def __enter__(self) -> Self:
        self._started = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        _spent.seconds += time.perf_counter() - self._started


def take_fetch_seconds() -> float:
    """Seconds that this thread was fetching since the last call."""
    seconds, _spent.seconds = _spent.seconds, 0.0
    return seconds
