"""A file comes into being whole or not at all, and as strict JSON."""

from __future__ import annotations

import hashlib
import json
import math
import resource
import signal
from pathlib import Path
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app_trainer_sdk.files import (
    finite,
    json_object,
    read_json,
    remove_tree,
    sha256_file,
    sha256_tree,
    write_atomic,
    write_json,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=3), below, max_size=3),
    max_leaves=10,
)


def strict(text: str | bytes) -> Any:
    """Parse JSON as a parser does that knows no NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


def test_a_written_file_replaces_the_old_one_and_leaves_nothing_beside(tmp_path: Path):
    """Folders on the way are made."""
    path = tmp_path / "a" / "b.json"
    write_atomic(path, b"one")
    write_atomic(path, b"two")

    assert path.read_bytes() == b"two"
    assert [path] == list(path.parent.iterdir())


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path):
    """CASES C1: the limit on file sizes stands in for a full disk; no half file and no leftover."""
    path = tmp_path / "a.json"
    write_atomic(path, b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_atomic(path, b"new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)

    assert path.read_bytes() == b"old"
    assert [path] == list(tmp_path.iterdir())


@settings(max_examples=50)
@given(VALUES)
def test_json_is_strict_whatever_the_numbers(tmp_path_factory: pytest.TempPathFactory, value: Any):
    """CASES J1: non-finite numbers become null, everything else reads back."""
    path = tmp_path_factory.getbasetemp() / "value.json"
    write_json(path, value)

    assert strict(path.read_bytes()) == finite(value) == read_json(path)


def test_scalars_of_other_libraries_are_numbers():
    """CASES J1: numpy and torch scalars too, non-finite ones included."""
    import torch

    values = {"a": numpy.float32(0.5), "b": [numpy.int64(3), numpy.float32("nan")], "c": torch.tensor(2.0)}

    assert finite(values) == {"a": 0.5, "b": [3, None], "c": 2.0}
    assert finite(torch.tensor(math.inf)) is None


def test_digests_of_a_file_and_a_tree(tmp_path: Path):
    """A tree's digest knows names and contents, and not the order in which files were made."""
    for folder, names in (("one", "ab"), ("two", "ba")):
        (tmp_path / folder / "below").mkdir(parents=True)
        for name in names:
            (tmp_path / folder / "below" / name).write_text(name * 10)
    digest, size = sha256_tree(tmp_path / "one")

    assert hashlib.sha256(b"a" * 10).hexdigest() == sha256_file(tmp_path / "one" / "below" / "a")
    assert (digest, 20) == sha256_tree(tmp_path / "two") == (digest, size)
    (tmp_path / "two" / "below" / "a").rename(tmp_path / "two" / "a")
    assert digest != sha256_tree(tmp_path / "two")[0]


def test_removing_what_is_not_there(tmp_path: Path):
    """Clearing up is not an error."""
    remove_tree(tmp_path / "nothing")
    (tmp_path / "it").mkdir()
    remove_tree(tmp_path / "it")

    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("body", [b"", b"[1]", b"no", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_what_somebody_else_sent_is_an_object_or_nothing(body: bytes):
    """Whatever it is, nothing is raised."""
    assert json_object(body) == {}
    assert json_object(b'{"a": [1]}') == {"a": [1]}
