"""A file is read once for everything that a receiver wants to know of it."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback import free

from app_trainer_sdk.errors import UploadFailed
from app_trainer_sdk.transfers.outgoing import MOST_PARTS, PART_BYTES, examine, part_size


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000])
def test_parts_cover_the_file_and_have_its_digests(tmp_path: Path, size: int):
    """In order, without a gap, the last one shorter; the whole has its own digest."""
    data = bytes(range(256)) * 4
    (tmp_path / "a").write_bytes(data[:size])
    file = examine(tmp_path / "a", kind="artifact", name="n", path="a", check=free, part_bytes=100, md5=True)
    cut = [data[:size][part.begin : part.begin + part.size] for part in file.parts()]

    assert b"".join(cut) == data[:size]
    assert [part.sha256 for part in file.parts()] == [hashlib.sha256(each).hexdigest() for each in cut]
    assert file.sha256 == file.whole().sha256 == hashlib.sha256(data[:size]).hexdigest()
    assert file.md5 == hashlib.md5(data[:size]).hexdigest()
    assert base64.b64encode(bytes.fromhex(file.md5))


@given(st.integers(0, 5 << 40))
def test_no_object_has_more_parts_than_s3_takes(size: int):
    """16 MiB, and larger only where that would be too many."""
    part = part_size(size)

    assert size <= part * MOST_PARTS
    assert part == PART_BYTES or size > PART_BYTES * MOST_PARTS


def test_a_wish_to_stop_is_noticed_while_reading(tmp_path: Path):
    """Digests of large files take minutes."""
    (tmp_path / "a").write_bytes(b"x" * 1000)

    def check() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(tmp_path / "a", kind="artifact", name="n", path="a", check=check)


def test_a_file_that_grows_meanwhile_is_refused(tmp_path: Path):
    """Its digest would be nobody's."""
    path = tmp_path / "a"
    path.write_bytes(b"x" * 1000)

    def check() -> None:
        with path.open("ab") as file:
            file.write(b"y")

    with pytest.raises(UploadFailed, match="its size changes"):
        examine(path, kind="artifact", name="n", path="a", check=check)
