"""YAML means what the same words mean in JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from readers import Reader, refusal, written

from app_trainer_sdk.job import check_job, load_job

#: Twenty aliases, each ten times the one before.
ALIASES = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 21))


def test_yaml_says_the_same_as_json(tmp_path: Path):
    """Plain words mean what they mean in JSON: 1e-4 is a number, no is the word, a date is text."""
    text = """
    trainer: reader
    model: reader-small
    job_id: 2026-11-30
    hyperparameters: {learning_rate: 1e-4, mixed_precision: no, updates: 0x10, torch_compile: true}
    inputs: {dataset: rows.jsonl}
    """
    job = load_job(written(tmp_path, text, "job.yaml"))

    assert job.job_id == "2026-11-30"
    assert job.hyperparameters == {
        "learning_rate": 1e-4, "mixed_precision": "no", "updates": 16, "torch_compile": True,
    }  # fmt: skip
    assert check_job(job, Reader)[0].learning_rate == 1e-4


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**12), 10**12)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"]), max_size=8),
        lambda below: st.lists(below, max_size=3) | st.dictionaries(st.sampled_from("abc"), below, max_size=3),
        max_leaves=8,
    )
)  # fmt: skip
def test_json_read_as_yaml_is_the_same_document(value: Any):
    """YAML 1.2 contains JSON: a job does not change when its file is renamed."""
    from app_trainer_sdk.job.core_yaml import load_yaml

    assert load_yaml(json.dumps({"it": value})) == {"it": value}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("trainer: [", "at line 1, column 11"),
        ("trainer: a\ntrainer: b", "the key 'trainer' stands twice"),
        ("1: 2", "the key 1 is not text"),
        ("a: &a [*a]", "unconstructable recursive node"),
        ("a: !!python/object:os.system {}", "could not determine a constructor"),
        ("a: !!timestamp 2026-11-30", "what JSON cannot"),
        ("a: 1\n---\nb: 2", "expected a single document"),
        ("a: \x01", "is not YAML"),
        ("a: " + "1" * 5000, "a number of 5,000 digits"),
        ("a: " + "[" * 2000, "is nested too deeply"),
        ("a0: &a0 [x]\n" + ALIASES, "with its aliases written out it has 3.46e+20 characters, of"),
        ("", "is empty; expected a document in YAML; change --job"),
    ],
)
def test_yaml_that_is_no_job(tmp_path: Path, text: str, reason: str):
    """A syntax error has its place; what JSON could not say is refused."""
    assert reason in refusal(written(tmp_path, text, "job.yml"))
