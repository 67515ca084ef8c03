"""Asking the planning process: its refusals are errors here, of the same class."""

from __future__ import annotations

import pytest

from app_trainer_sdk.errors import BadJob, ExitCode
from app_trainer_sdk.planning.process import ask


def test_a_refusal_crosses_the_process():
    """64 stays 64, with its message and whose fault it is."""
    with pytest.raises(BadJob, match="nothing:Here") as told:
        ask({"job": {"trainer": "nothing:Here", "model": "m"}, "replicas": 1, "cards": []})

    assert (told.value.code, told.value.origin) == (ExitCode.BAD_JOB, "user")
