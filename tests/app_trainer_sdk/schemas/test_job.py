"""The job's schema takes what people write and what the SDK reads, and refuses what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.job import read_job
from app_trainer_sdk.schemas.job import job_schema

VALIDATOR = Draft202012Validator(job_schema())
LEAST: dict[str, Any] = {"trainer": "text", "model": "m"}
DIGEST = "0" * 64
GOOD: list[dict[str, Any]] = [
    {},
    {"inputs": {"dataset": "rows.jsonl"}, "callbacks": "https://host/hook", "weights": {"base": "/w"}},
    {"inputs": {"dataset": {"url": "a.zip", "kind": "zip", "limits": {"max_files": 3}}}, "job_id": "j_1"},
    {"callbacks": {"url": "http://h/x", "mode": "control"}, "outputs": {"required": ["adapter"]}},
    {"weights": {"base": {"files": ["https://h/a.bin", {"path": "b", "url": "https://h/b"}]}}},
    {"weights": {"base": {"files": [{"path": "b", "urls": ["/a", "/b"], "size": 1, "sha256": DIGEST}]}}},
    {
        "outputs": {"grant_url": "https://h/g", "checkpoints": True},
        "resume": {"step": 4, "files": [{"path": "manifest.json", "url": "https://h/m"}, "https://h/s"]},
    },
    {"outputs": {"put": {"adapter/a.bin": "https://h/a?sig=1"}, "required": ["adapter"]}},
    {
        "weights": {"base": {"hub": "a/b", "revision": "abc"}},
        "hyperparameters": {"updates": 3},
        "method": "lora",
    },
]
BAD: list[dict[str, Any]] = [
    {"model": 3}, {"trainers": "x"}, {"inputs": {"a": 3}}, {"inputs": {"a": {"url": "x", "sha256": "short"}}},
    {"callbacks": "ftp://h"}, {"callbacks": {"url": "http://h", "mode": "both"}}, {"schema": "v2"},
    {"weights": {"base": {"files": [{"path": "b"}]}}}, {"inputs": {"a": {"url": ""}}}, {"job_id": "a b"},
    {"inputs": {"a": {"url": "x", "kind": "rar"}}}, {"inputs": []},
    {"resume": {"step": 4, "files": []}}, {"resume": {"step": -1, "files": ["x"]}},
    {"outputs": {"grant_url": "ftp://h"}}, {"outputs": {"checkpoints": "yes"}},
]  # fmt: skip


@pytest.mark.parametrize("parts", GOOD)
def test_what_can_be_run_is_valid(parts: dict[str, Any]):
    """As written and as normalised."""
    VALIDATOR.validate({**LEAST, **parts})
    VALIDATOR.validate(read_job({**LEAST, **parts}).document())


@pytest.mark.parametrize("parts", BAD)
def test_what_is_refused_is_not_valid(parts: dict[str, Any]):
    """Both say no."""
    assert not VALIDATOR.is_valid({**LEAST, **parts})
    with pytest.raises(BadJob):
        read_job({**LEAST, **parts})
