"""What a job may say, and its name."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from readers import MINIMAL

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.job import Job, read_job
from app_trainer_sdk.validation import PATTERNS


@given(st.permutations(["trainer", "model", "inputs", "hyperparameters", "job_callbacks"]))
def test_the_digest_does_not_know_the_order_of_keys(order: list[str]):
    """Equal jobs have one identifier, however they are written."""
    document = {**MINIMAL, "hyperparameters": {"updates": 3, "seed": 1}}
    shuffled = {key: document[key] for key in order if key in document}
    shuffled["hyperparameters"] = dict(reversed(document["hyperparameters"].items()))

    assert read_job(document).identifier() == read_job(shuffled).identifier()


def test_the_digest_is_of_what_is_asked():
    """Hyperparameters, model and inputs change it; callbacks do not; a job_id replaces it."""
    base = read_job(MINIMAL).identifier()

    assert base.startswith("j_")
    assert base == read_job({**MINIMAL, "callbacks": "https://host/x"}).identifier()
    assert base == read_job({**MINIMAL, "schema": "app.trainer.job/v1", "hyperparameters": {}}).identifier()
    for change in (
        {"hyperparameters": {"seed": 1}},
        {"model": "m"},
        {"inputs": {"dataset": "b"}},
        {"method": "full"},
    ):
        assert base != read_job({**MINIMAL, **change}).identifier()
    assert read_job({**MINIMAL, "job_id": "mine"}).identifier() == "mine"


def test_an_archive_says_its_kind_and_limits():
    """Both are checked before anything is fetched."""
    dataset = {"url": "a.zip", "kind": "zip", "limits": {"max_files": 3, "max_ratio": 10}}
    job = read_job({**MINIMAL, "inputs": {"dataset": dataset}})

    assert job.inputs["dataset"].limits is not None
    assert job.inputs["dataset"].limits.max_files == 3
    for change, pointer in (({"kind": "rar"}, "kind"), ({"limits": {"max_file": 1}}, "limits/max_file")):
        with pytest.raises(BadJob) as caught:
            read_job({**MINIMAL, "inputs": {"dataset": {**dataset, **change}}})
        assert [f"/inputs/dataset/{pointer}"] == [each.pointer for each in caught.value.problems]


def test_every_pattern_of_a_job_is_told_in_words():
    """A person who calls a job ``my job`` reads no regular expression."""
    with pytest.raises(BadJob) as caught:
        read_job({**MINIMAL, "job_id": "my job", "inputs": {"da ta": "rows.jsonl"}})
    told = str(caught.value)
    patterns = set(re.findall(r'"pattern": ("[^"]*")', json.dumps(Job.model_json_schema())))

    assert "/job_id: found 'my job'; expected a string of at most 128 letters, digits, '.', '_', '-'" in told
    assert "found the name 'da ta'; expected a name of at most 128 letters" in told
    assert {json.loads(each) for each in patterns} <= PATTERNS.keys()
