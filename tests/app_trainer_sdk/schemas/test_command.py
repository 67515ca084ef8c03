"""``app-trainer schema`` prints JSON Schemas that an independent validator takes for such."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from jsonschema import Draft202012Validator

from app_trainer_sdk.describe import describe_document
from app_trainer_sdk.registry import all_trainers
from app_trainer_sdk.schemas.command import DOCUMENTS, main, schema_of


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_is_a_schema_of_2020_12(name: str, capsys: pytest.CaptureFixture[str]):
    """Printed as it is; nothing in it is unknown to the dialect."""
    assert main([name]) == 0
    printed = json.loads(capsys.readouterr().out)

    assert printed == schema_of(name)
    assert printed["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(printed)


def test_all_at_once(capsys: pytest.CaptureFixture[str]):
    """By name."""
    assert main([]) == 0

    assert set(json.loads(capsys.readouterr().out)) == set(DOCUMENTS)


def test_describe_is_as_its_schema_says():
    """What the installed trainers say."""
    document = describe_document(all_trainers().values())

    Draft202012Validator(schema_of("describe")).validate(json.loads(json.dumps(document)))


def test_an_unknown_document_ends_with_64(capsys: pytest.CaptureFixture[str]):
    """And names those there are."""
    with pytest.raises(SystemExit) as ending:
        main(["events"])

    assert ending.value.code == 64
    assert "manifest" in capsys.readouterr().err


def test_a_schema_is_printed_without_torch():
    """On machines that only talk to trainers."""
    code = "import sys; sys.modules['torch'] = None; from app_trainer_sdk.schemas.command import main; main([])"

    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
