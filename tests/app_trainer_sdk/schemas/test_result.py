"""The result's schema can fail; that real results are as it says is proved where runs are (``test_run.py``)."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.outcome import outcome_document
from app_trainer_sdk.schemas.result import result_schema

VALIDATOR = Draft202012Validator(result_schema())
HEAD = {"schema": "app.trainer.result/v1", "job_id": "j", "attempt": 1, "sdk": "0"}


def test_each_ending_has_a_result():
    """Every exit code, with what a trainer adds beside."""
    for code in ExitCode:
        VALIDATOR.validate({**HEAD, **outcome_document(code, timings={"train": 1.0}, mine={"a": 1})})


@pytest.mark.parametrize("change", [{"exit_code": 1}, {"status": "done"}, {"attempt": 0}, {"failure": {}}])
def test_what_is_no_result(change: dict[str, Any]):
    """A code that no trainer ends with, and the like."""
    assert not VALIDATOR.is_valid({**HEAD, **outcome_document(ExitCode.SUCCEEDED), **change})
