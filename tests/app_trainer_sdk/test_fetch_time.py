"""A dataset says which part of reading a row is fetching."""

from __future__ import annotations

import threading
import time

import pytest

from app_trainer_sdk import fetching
from app_trainer_sdk.fetch_time import take_fetch_seconds


def test_fetching_adds_up_until_it_is_taken():
    """Also where it fails; afterwards it begins anew."""
    take_fetch_seconds()
    with fetching():
        time.sleep(0.01)
    with pytest.raises(OSError, match="gone"), fetching():
        raise OSError("gone")

    assert take_fetch_seconds() >= 0.01
    assert take_fetch_seconds() == 0.0


def test_other_threads_do_not_count():
    """Only the thread that reads the row waits for it."""
    take_fetch_seconds()

    def fetch() -> None:
        with fetching():
            time.sleep(0.01)

    thread = threading.Thread(target=fetch)
    thread.start()
    thread.join()

    assert take_fetch_seconds() == 0.0
