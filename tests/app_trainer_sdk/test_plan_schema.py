"""The plan's schema."""

from __future__ import annotations

import json

import jsonschema

from app_trainer_sdk.plan_command import main


def test_the_schema_is_published(capsys):
    assert main(["--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)

    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == "urn:app.trainer.fit/v1"
