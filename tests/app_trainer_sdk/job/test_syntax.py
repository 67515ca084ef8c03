"""A job file is JSON or YAML, and told with line and column where it is neither."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from readers import MINIMAL, refusal, written

from app_trainer_sdk.job import parse_document


def test_a_missing_file_is_told_with_its_path(tmp_path: Path):
    """The path and the option to change stand in the message."""
    message = refusal(tmp_path / "jb.json")

    assert f"nothing at {tmp_path}/jb.json; expected a JSON or YAML file; change --job" == message


def test_a_folder_or_bytes_that_are_no_text_cannot_be_read(tmp_path: Path):
    """A folder, and a file that is not UTF-8, are refused with the reason."""
    assert "a folder at" in refusal(tmp_path)
    told = refusal(written(tmp_path, b'{"trainer": "\xff"}'))

    assert "is not UTF-8: invalid start byte at byte 13; expected" in told


@pytest.mark.parametrize(("name", "text"), [("a.json", json.dumps(MINIMAL)), ("a.yaml", "trainer: reader")])
def test_a_byte_order_mark_is_passed_over(tmp_path: Path, name: str, text: str):
    """Some editors begin a file with one; JSON and YAML are read alike."""
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())

    assert parse_document(tmp_path / name)["trainer"] == "reader"


def test_invalid_json_is_told_with_line_and_column(tmp_path: Path):
    """The place is where a person finds the missing comma."""
    message = refusal(written(tmp_path, '{"trainer": "text"\n "model": "m"}'))

    assert "is not JSON: Expecting ',' delimiter at line 2, column 2" in message
    assert "Unterminated string starting at line 1, column 2" in refusal(written(tmp_path, '{"a'))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"trainer": "a", "trainer": "b"}', "the key 'trainer' stands twice"),
        ('{"hyperparameters": {"learning_rate": NaN}}', "NaN is not a JSON number"),
        ('{"hyperparameters": {"learning_rate": -Infinity}}', "-Infinity is not a JSON number"),
        ('{"model": ' + "1" * 5000 + "}", "is not JSON: a number of 5,000 digits; expected valid JSON"),
        ("[" * 100_000, "is nested too deeply"),
        ("", "is empty; expected a document in JSON; change --job"),
        (" \n", "is empty; expected a document in JSON; change --job"),
    ],
)
def test_json_that_python_takes_and_a_job_does_not(tmp_path: Path, text: str, reason: str):
    """A key twice, NaN, infinities and endless nesting are refused, not guessed at."""
    assert reason in refusal(written(tmp_path, text))


def test_yaml_under_another_name_is_told_how_it_is_read(tmp_path: Path):
    """What a file is read as follows from its name."""
    told = refusal(written(tmp_path, "trainer: text", "job.txt"))

    assert "job.txt is not JSON: " in told
    assert "expected valid JSON, or .yaml at the end of its name; change --job" in told


def test_a_parsed_document_is_not_validated(tmp_path: Path):
    """Other commands read documents of their own with the same care."""
    assert parse_document(written(tmp_path, '{"anything": [1]}')) == {"anything": [1]}
