"""A trainer refuses what it does not know, everything at once."""

from __future__ import annotations

from typing import Any

import pytest
from readers import FILE, MINIMAL, Reader, problems

from app_trainer_sdk.job import check_job, read_job
from app_trainer_sdk.testing.toys import ToyTrainer


def test_everything_the_trainer_knows_better_is_told_at_once():
    """Model, input, missing input, hyperparameter, weights: each with its pointer and the nearest name."""
    told = problems(
        {
            "trainer": "reader", "model": "reader-smal", "inputs": {"datset": "a"},
            "hyperparameters": {"learning_rte": 1, "updates": 0},
        }
    )  # fmt: skip

    assert "did you mean 'reader-small'?" in told["/model"]
    assert "did you mean 'dataset'?" in told["/inputs/datset"]
    assert "a path or URL: Rows to read." in told["/inputs/dataset"]
    assert "did you mean 'learning_rate' or" in told["/hyperparameters/learning_rte"]
    assert "/hyperparameters/updates" in told


def test_an_unknown_method_is_told_once():
    """What an unknown method would hand over is not guessed at."""
    told = problems({**MINIMAL, "method": "laro", "outputs": {"required": ["adapter"]}})

    assert list(told) == ["/method"]
    assert "did you mean 'lora'?" in told["/method"]


def test_a_required_artifact_must_be_one_of_the_method():
    """The pointer names the element of the list."""
    told = problems({**MINIMAL, "method": "full", "outputs": {"required": ["weights", "weihgts"]}})

    assert list(told) == ["/outputs/required/1"]
    assert "did you mean 'weights'?" in told["/outputs/required/1"]


def test_weights_say_one_place_under_a_known_name():
    """A misspelt role would train from the catalog's weights; a place that is half said is told as well."""
    told = problems(
        {**MINIMAL, "weights": {"bse": "folder"}},
    )

    assert "did you mean 'base'?" in told["/weights/bse"]
    for weights, pointer in [
        ({}, "/weights/base"),
        ({"url": "a", "hub": "b/c", "revision": "d"}, "/weights/base"),
        ({"hub": "b/c"}, "/weights/base/revision"),
    ]:
        assert [pointer] == list(problems({**MINIMAL, "weights": {"base": weights}}))


def test_a_right_job_gives_settings_row_and_method():
    """The first method is the default; the row's defaults are merged."""
    settings, row, method = check_job(read_job(MINIMAL), Reader)

    assert (row.name, method, settings.epochs, settings.global_batch) == ("reader-small", "lora", 2, 16)


def test_asking_drops_the_defaults_it_contradicts():
    """Updates asked for drop a default of epochs; one batch number drops the others' defaults."""
    asked = {"hyperparameters": {"updates": 7, "microbatch": 3}}
    settings, _, _ = check_job(read_job({**MINIMAL, **asked}), Reader)

    assert (
        settings.updates, settings.epochs, settings.microbatch, settings.global_batch,
    ) == (7, "auto", 3, "auto")  # fmt: skip


def test_the_toy_needs_no_input():
    """An optional input may stay away."""
    job = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}

    assert check_job(read_job(job), ToyTrainer)[2] == "full"


@pytest.mark.parametrize(
    ("weights", "pointer", "words"),
    [
        ({"files": [FILE, FILE]}, "/weights/base/files", "twice"),
        ({"files": [FILE, {**FILE, "path": "model.safetensors/x"}]}, "/weights/base/files", "as a folder"),
        ({"files": [FILE], "url": "a"}, "/weights/base", "url and files"),
        ({"files": [FILE], "size": 3}, "/weights/base", "beside files"),
    ],
)
def test_sets_of_weights_that_contradict_themselves(weights: Any, pointer: str, words: str):
    """Two files of one name, two places, a digest of nothing."""
    told = problems({**MINIMAL, "weights": {"base": weights}})

    assert [pointer] == list(told)
    assert words in told[pointer]


def test_where_outputs_go_and_what_is_resumed_is_checked_with_the_rest():
    """One place for outputs, somebody who grants checkpoints, and digests of what is resumed from."""
    both = {"grant_url": "https://h/g", "put": {"a/b": "https://h/p"}}
    file = {"path": "manifest.json", "url": "https://h/m", "size": 1, "sha256": "0" * 64}

    assert list(problems({**MINIMAL, "outputs": both})) == ["/outputs/put/a~1b", "/outputs"]
    assert list(problems({**MINIMAL, "outputs": {"checkpoints": True}})) == ["/outputs/checkpoints"]
    resume = {"step": 1, "files": [file, {"path": "state.json", "url": "https://h/s"}, file]}
    assert list(problems({**MINIMAL, "resume": resume})) == ["/resume/files/1", "/resume/files"]
