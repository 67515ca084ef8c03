"""A mirror's list is what a job takes, and a mirror that does not have it is told file by file."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from lying_server import LyingServer, body_of

from app_trainer_sdk.job import read_job
from app_trainer_sdk.mirror_command import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Weights as they lie on a disk."""
    for name, body in {"config.json": b"{}", "sub/a b.bin": body_of(1000), ".git/x": b"hidden"}.items():
        path = tmp_path / "weights" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    return tmp_path / "weights"


def test_the_list_of_a_folder_is_what_a_job_takes(folder: Path, capsys: pytest.CaptureFixture[str]):
    """Sizes, digests, URLs in the order of preference; hidden files are left out."""
    bases = ["--base-url", "https://a/w/", "--base-url", "https://b"]
    assert main([str(folder), *bases]) == 0
    document = json.loads(capsys.readouterr().out)

    assert document["files"][1] == {
        "path": "sub/a b.bin", "size": 1000, "sha256": hashlib.sha256(body_of(1000)).hexdigest(),
        "urls": ["https://a/w/sub/a%20b.bin", "https://b/sub/a%20b.bin"],
    }  # fmt: skip
    assert [each["path"] for each in document["files"]] == ["config.json", "sub/a b.bin"]
    job = read_job({"trainer": "t", "model": "m", "weights": {"base": document}})
    assert job.weights["base"].files is not None
    assert main([str(folder), *bases, "--output", str(folder / "list.json")]) == 0
    assert json.loads((folder / "list.json").read_text()) == document


def listed(folder: Path, server: LyingServer, **change: Any) -> str:
    file = {"path": "f", "size": len(server.body), "sha256": hashlib.sha256(server.body).hexdigest(),
            "urls": [server.url + "?sig=secret"], **change}  # fmt: skip
    (folder / "list.json").write_text(json.dumps({"files": [file]}))
    return str(folder / "list.json")


def test_a_good_mirror(folder: Path, serve_body: Any, capsys: pytest.CaptureFixture[str]):
    """Every byte by ranges, or with --quick only that ranges work; what could be better is told."""
    server = serve_body(body_of(1000))
    assert main([listed(folder, server), "--check"]) == 0
    assert capsys.readouterr().out == f"f  {server.url}  good\n"
    assert server.sent == 1001
    server.etag = ""
    assert main([listed(folder, server), "--check", "--quick"]) == 0
    assert "good; no strong ETag" in capsys.readouterr().out
    assert server.sent == 1002


@pytest.mark.parametrize(
    ("said", "change", "words"),
    [
        ({"ranges": False}, {}, "serves no ranges"),
        ({"always": "refused"}, {}, "answered 403"),
        ({"always": "wrong_bytes"}, {}, "the sha256"),
        ({"always": "shifted"}, {}, "to the bytes 999-999"),
        ({"always": "short_body"}, {}, "bytes instead of 1"),
        ({}, {"size": 7}, "1000 bytes, expected 7"),
        ({"head": False, "ranges": False, "lengths": False}, {}, "does not say how long"),
    ],
)
def test_a_mirror_that_is_not(
    folder: Path, serve_body: Any, capsys: pytest.CaptureFixture[str], said: Any, change: Any, words: str
):
    """69, the file, the URL without its secrets, and what is wrong."""
    server = serve_body(body_of(1000), **said)
    code = main([listed(folder, server, **change), "--check"])
    told = capsys.readouterr().out

    assert code == 69
    assert words in told
    assert "secret" not in told


def test_wrong_requests(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """No base URL, no files, no list: each with its own code and what was expected."""
    assert main([str(folder)]) == 64
    assert "change --base-url" in capsys.readouterr().err
    assert main([str(folder), "--check"]) == 64
    told = capsys.readouterr().err
    assert "; expected with --check a list of files" in told
    assert "change SOURCE" in told
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty"), "--base-url", "https://a"]) == 66
    for text, words in (
        ('{"files": [{"path": "../x"}]}', "leaves its folder"),
        ('{"revision": "r"}', "no files"),
    ):
        (tmp_path / "list.json").write_text(text)
        assert main([str(tmp_path / "list.json"), "--check"]) == 64
        assert words in capsys.readouterr().err
