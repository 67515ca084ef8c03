"""The schema of what a container says it offers."""

from __future__ import annotations

from jsonschema import Draft202012Validator
from offered import TOY

from app_trainer_sdk.describe_schema import document_schema


def test_the_schema_describes_what_it_does_not_name():
    """A null floor or need is explained where an engineer looks."""
    floor = document_schema()["$defs"]["FloorFacts"]["properties"]

    assert "null when no floor is known" in floor["gib"]["description"]
    assert "without evidence is declared" in floor["grade"]["description"]


def test_the_schema_of_settings_is_2020_12():
    """A control plane validates jobs with it: defaults pass, mistakes do not, units stay."""
    schema = TOY["hyperparameters"]
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)

    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert tuple(schema["properties"][name]["unit"] for name in ("max_length", "updates")) == (
        "tokens",
        "updates",
    )
    assert validator.is_valid({"updates": "auto"})
    assert validator.is_valid({"updates": 1})
    assert not validator.is_valid({"updates": "atuo"})
    assert not validator.is_valid({"learning_rte": 1})
