"""The list of files that a mirror has."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from lying_server import body_of, tools

from app_trainer_sdk.errors import BadJob, InputMissing
from app_trainer_sdk.transfers.manifest import check_mirrors, list_folder, manifest, read_manifest


def test_what_a_folder_has_is_what_a_job_says(tmp_path: Path):
    """Every file by its name, hidden ones left out; names are quoted in URLs, mirrors keep their order."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a b").write_bytes(b"abc")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").touch()
    document = manifest(list_folder(tmp_path), ["https://one/w/", "https://two"], revision="r1")
    (row,) = document["files"]

    assert document["revision"] == "r1"
    assert row == {
        "path": "sub/a b", "size": 3, "sha256": hashlib.sha256(b"abc").hexdigest(),
        "urls": ["https://one/w/sub/a%20b", "https://two/sub/a%20b"],
    }  # fmt: skip
    assert [each.path for each in read_manifest(document).files or ()] == ["sub/a b"]
    assert "revision" not in manifest([], [])


def test_a_folder_that_no_job_could_take(tmp_path: Path):
    """Without a file, or with a name that must not be written elsewhere."""
    with pytest.raises(InputMissing, match="no files in"):
        list_folder(tmp_path)
    (tmp_path / "a\\b").touch()
    with pytest.raises(BadJob, match="a backslash in the name"):
        list_folder(tmp_path)


@pytest.mark.parametrize("document", [[], {}, {"files": [{"path": "../x", "urls": ["https://a/x"]}]}])
def test_what_is_no_list_of_files(document: Any):
    """64, as a job that held it would end."""
    with pytest.raises(BadJob):
        read_manifest(document)


def test_every_mirror_is_asked_for_every_file(serve_body: Any, tmp_path: Path):
    """A wrong byte is found where every byte is read, and not by its size; what could be better is noted."""
    good, wrong = serve_body(body_of(5000), etag=""), serve_body(body_of(5000), always="wrong_bytes")
    said = read_manifest(
        {"files": [{"path": "f", "size": 5000, "sha256": hashlib.sha256(body_of(5000)).hexdigest(),
                    "urls": [good.url, wrong.url]}]}
    )  # fmt: skip
    first, second = check_mirrors(said, tools())
    _, quick = check_mirrors(said, tools(), digests=False)

    assert (first.problem, len(first.notes)) == ("", 1)
    assert "no strong ETag" in first.notes[0]
    assert "the sha256" in second.problem
    assert quick.problem == ""
