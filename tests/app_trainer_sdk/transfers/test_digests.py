"""The digest of a file that still grows is that of the whole, and a file that cannot be read is an error."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from lying_server import body_of

from app_trainer_sdk.transfers.digests import TailDigest


def test_the_digest_follows_what_is_allowed(tmp_path: Path):
    """Bytes beyond are not looked at, since they may still change; git's own id comes with it."""
    body, path = body_of(3_000_000), tmp_path / "file"
    path.write_bytes(body[:1_500_000] + b"!" * 1_500_000)
    digest = TailDigest(path, git_size=len(body))
    digest.allow(1_500_000)

    assert digest.reached(1_500_000, 60.0)
    assert not digest.reached(1_500_001, 0.0)
    path.write_bytes(body)
    digest.allow(len(body))
    assert digest.reached(len(body), 60.0)
    assert digest.sha256 == hashlib.sha256(body).hexdigest()
    assert digest.git_sha1 == hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def test_a_file_that_is_shorter_than_said(tmp_path: Path):
    """An error where it is waited for, not a wait for ever."""
    (tmp_path / "file").write_bytes(b"abc")
    digest = TailDigest(tmp_path / "file")
    digest.allow(5)
    with pytest.raises(OSError, match="shorter"):
        digest.reached(5, 60.0)


def test_nothing_is_the_digest_of_nothing(tmp_path: Path):
    """An empty file needs no thread and no file."""
    digest = TailDigest(tmp_path / "no")

    assert digest.reached(0, 0.0)
    assert digest.sha256 == hashlib.sha256().hexdigest()
    digest.close()
