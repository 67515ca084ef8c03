"""Where a job document comes from: a file, or a URL that the platform passes in the environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from loopback import reply

from app_trainer_sdk.attempt.given import LARGEST_BYTES, fetch_document, given_job
from app_trainer_sdk.errors import BadJob, DependencyUnavailable, InputMissing
from app_trainer_sdk.redaction import redact
from app_trainer_sdk.run import job_parser, main

JOB = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp", "inputs": {"dataset": "rows"}}
QUERY = "?X-Signature=very-secret-word"


def test_a_job_comes_from_a_file_or_a_url(serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A1: the same job either way; a failing server is asked again; paths are of the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.json").write_text(json.dumps(JOB))
    answers = [(503, b""), (500, b""), (200, json.dumps(JOB).encode())]
    server, pauses = serve(lambda handler, request: reply(handler, *answers.pop(0))), list[float]()

    assert fetch_document(f"{server.url}/job{QUERY}", pause=pauses.append) == JOB
    assert len(pauses) == 2
    answers.append((200, json.dumps(JOB).encode()))
    assert given_job(f"{server.url}/job") == given_job(tmp_path / "job.json")


def test_yaml_is_known_by_its_name(serve: Any):
    """Whatever the query says."""
    server = serve(lambda handler, request: reply(handler, 200, b"trainer: t\nmodel: m\n"))

    assert fetch_document(f"{server.url}/job.yaml?name=x.json") == {"trainer": "t", "model": "m"}


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (404, b"", InputMissing, "answered 404"), (403, b"", InputMissing, "answered 403"),
        (429, b"", DependencyUnavailable, "answered 429"), (200, b"<html>", BadJob, "is not JSON"),
        (200, b"", BadJob, "is empty"), (200, b"\xff", BadJob, "is not UTF-8"),
        (200, b" " * (LARGEST_BYTES + 1), BadJob, "more than 4,194,304 bytes"),
    ],
)  # fmt: skip
def test_what_is_no_job_is_told_without_the_secret(serve: Any, status: int, body: bytes, kind: Any, said: str):
    """66, 69 or 64 with the address and the setting; the query is in no message, and cut out of any other."""
    late = {"Retry_After": "3600"} if status == 429 else {}
    server = serve(lambda handler, request: reply(handler, status, body, **late))
    with pytest.raises(kind, match=said) as caught:
        fetch_document(f"{server.url}/job{QUERY}")

    assert server.url in str(caught.value)
    assert "change --job or APP_TRAINER_JOB_URL" in str(caught.value)
    assert "very-secret" not in str(caught.value) + redact("very-secret-word")


def test_the_file_goes_before_the_url(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """``--job``, ``JOB_FILE``, ``JOB_URL``, in this order; the help tells no signature."""
    monkeypatch.delenv("APP_TRAINER_JOB_FILE", raising=False)
    monkeypatch.setenv("APP_TRAINER_JOB_URL", f"https://h/job{QUERY}")

    assert job_parser("p", "d").parse_args([]).job == f"https://h/job{QUERY}"
    assert "very-secret" not in job_parser("p", "d").format_help()
    assert job_parser("p", "d").parse_args(["--job", "here.json"]).job == Path("here.json")
    monkeypatch.setenv("APP_TRAINER_JOB_FILE", "/there.json")
    assert job_parser("p", "d").parse_args([]).job == Path("/there.json")


def test_a_run_whose_job_is_not_there_ends_with_66(
    serve: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Nothing was begun."""
    server = serve(lambda handler, request: reply(handler, 410))

    assert main(["--job", f"{server.url}/job{QUERY}", "--job-dir", str(tmp_path / "dir")]) == 66
    assert "very-secret" not in "".join(capsys.readouterr())
    assert not (tmp_path / "dir").exists()
