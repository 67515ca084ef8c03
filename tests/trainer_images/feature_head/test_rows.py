"""What a row is, whatever the backbone reads."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trainer_images.feature_head import rows
from trainer_images.feature_head.rows import HELD_OUT, SPLITS, file_digest


def test_a_file_is_digested_once_for_each_state_of_it(tmp_path: Path):
    """A run reads its index several times; a file that was changed is another one."""
    path = tmp_path / "picture.png"
    path.write_bytes(b"one")
    before = rows._digest.cache_info().misses
    first = [file_digest(path) for _ in range(3)]
    computed = rows._digest.cache_info().misses - before
    path.write_bytes(b"two")
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000))

    assert first == [hashlib.sha256(b"one").hexdigest()] * 3
    assert computed == 1
    assert file_digest(path) == hashlib.sha256(b"two").hexdigest()


def test_what_is_held_out():
    """Everything but what is trained on."""
    assert {*SPLITS} - {*HELD_OUT} == {"train"}
