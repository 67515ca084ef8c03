"""The document that says what a run was."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from app_trainer_sdk.manifest.document import Manifest, manifest_schema

LEAST: dict[str, Any] = {
    "sdk_version": "1", "job_id": "j", "attempt": 1, "status": "failed", "exit_code": 64, "ended": "now",
    "job": {"trainer": "t"}, "cut": [], "determinism": {"seed": None}, "packages": {},
    "code": {
        "revision": None, "changed": None, "image_digest": None, "trainer": "t", "trainer_version": None,
        "trainer_digest": None, "sdk_digest": "0",
    },
    "environment": {"python": "3.11"},
}  # fmt: skip


def test_a_run_that_came_nowhere_is_told_all_the_same():
    """What nobody got to know is null or empty; the document keeps its published schema and reads back."""
    document = Manifest(**LEAST).document()
    Draft202012Validator(manifest_schema()).validate(document)

    assert document["schema"] == "app.trainer.manifest/v1"
    assert (document["reload"], document["outputs"], document["weights"]) == (None, [], {})
    assert Manifest.model_validate(document) == Manifest(**LEAST)


@pytest.mark.parametrize(
    "change", [{"surprise": 1}, {"schema": "app.trainer.manifest/v2"}, {"timings": {"train": float("nan")}}]
)
def test_nothing_else_is_in_it(change: dict[str, Any]):
    """An unknown key, another version, a number that JSON does not have."""
    with pytest.raises(ValidationError):
        Manifest.model_validate({**LEAST, **change})
