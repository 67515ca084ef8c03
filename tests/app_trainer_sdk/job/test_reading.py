"""A document becomes a job: short forms written out, paths made whole, all that is wrong told at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from readers import FILE, MINIMAL, refusal, written

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.job import begun_job, load_job, read_job


@pytest.mark.parametrize("text", ["[]", "3", "null", '"job"'])
def test_a_document_that_is_no_object(tmp_path: Path, text: str):
    """What was found is shown."""
    assert f"a job that is {json.loads(text)!r}" in refusal(written(tmp_path, text))


def test_everything_wrong_is_told_at_once_before_the_trainer_is_asked():
    """Unknown keys come with what was meant, wrong values with their pointer."""
    document = {
        "trainr": "text", "model": 3, "job_id": "a b", "inputs": {"dataset": {"url": "a", "sise": 3}},
        "outputs": {"required": "adapter"}, "callbacks": {"url": "ftp://x", "mode": "shout"},
    }  # fmt: skip
    with pytest.raises(BadJob) as caught:
        read_job(document)
    told = {problem.pointer: str(problem) for problem in caught.value.problems}

    assert "(did you mean 'trainer'?)" in told["/trainr"]
    assert told["/trainer"] == "/trainer: found nothing; expected a string"
    assert told["/model"] == "/model: found 3; expected a string"
    assert "(did you mean 'size'?)" in told["/inputs/dataset/sise"]
    assert {
        "/trainr", "/trainer", "/model", "/job_id", "/inputs/dataset/sise", "/outputs/required",
        "/callbacks/url", "/callbacks/mode",
    } == told.keys()  # fmt: skip


@pytest.mark.parametrize("model", [{"model": "toy-mpl"}, {}])
def test_both_layers_are_told_at_once(model):
    """The document's own mistakes and those that only the trainer knows, each once."""
    document = {
        "trainer": "app_trainer_sdk.testing.toys:ToyTrainer", **model, "modle": 1, "inputs": {"dataset": 3},
        "hyperparameters": {"learning_rte": 1, "updates": 0},
    }  # fmt: skip
    with pytest.raises(BadJob) as caught:
        read_job(document)

    assert sorted(each.pointer for each in caught.value.problems) == [
        "/hyperparameters/learning_rte", "/hyperparameters/updates", "/inputs/dataset", "/model", "/modle",
    ]  # fmt: skip


def test_without_a_trainer_to_ask_the_document_is_told_all_the_same():
    """Its own error comes once the document is right."""
    for trainer in ("nobody-has-this", "no_such_module:Trainer"):
        with pytest.raises(BadJob) as caught:
            read_job({"trainer": trainer, "model": "m", "extra": 1})
        assert [each.pointer for each in caught.value.problems] == ["/extra"]


def test_a_string_means_a_file():
    """A string where a file is expected is the same job as the object."""
    short = read_job({**MINIMAL, "weights": {"base": "folder"}, "callbacks": "https://host/x"})
    full = read_job(
        {
            **MINIMAL, "inputs": {"dataset": {"url": "rows.jsonl"}}, "weights": {"base": {"url": "folder"}},
            "callbacks": {"url": "https://host/x", "mode": "notify"},
        }
    )  # fmt: skip

    assert full == short
    assert full.identifier() == short.identifier()


def test_files_of_weights_are_normalised_before_they_are_checked():
    """A string is one place of a file of that name, ``url`` one mirror; one mistake is told once."""
    files = [
        "https://host/w/model%20a.bin?sig=x",
        {"path": "b", "url": "https://b"},
        {"path": "c", "urls": "w/c"},
    ]
    job = read_job({**MINIMAL, "weights": {"base": {"files": files}}}, base=Path("/jobs"))
    read = job.weights["base"].files

    assert read is not None
    assert [(each.path, each.urls) for each in read] == [
        ("model a.bin", [files[0]]), ("b", ["https://b"]), ("c", ["/jobs/w/c"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "pointer", "words"),
    [
        ({"files": [{**FILE, "path": "../x"}]}, "/weights/base/files/0/path", "leaves its folder"),
        ({"files": [{**FILE, "urls": []}]}, "/weights/base/files/0/urls", "a list"),
        ({"files": [{**FILE, "urls": ["ftp://a"]}]}, "/weights/base/files/0/urls/0", "https://host/path"),
        ({"files": [{**FILE, "sha265": "0" * 64}]}, "/weights/base/files/0/sha265", "did you mean 'sha256'?"),
        ({"files": [{**FILE, "sha256": "0" * 63}]}, "/weights/base/files/0/sha256", "a string of 64 digits"),
        ({"files": [3]}, "/weights/base/files/0", "an object"),
    ],
)
def test_files_of_weights_that_cannot_be(weights: Any, pointer: str, words: str):
    """Each with its own pointer."""
    with pytest.raises(BadJob) as caught:
        read_job({**MINIMAL, "weights": {"base": weights}})

    assert [pointer] == [each.pointer for each in caught.value.problems]
    assert words in str(caught.value)


def test_paths_are_relative_to_the_job_file(tmp_path: Path):
    """Wherever the command is started; URLs and absolute paths stay, and so does the identifier."""
    inputs = {"dataset": "data/rows.jsonl", "controls": "file:///abs"}
    path = written(
        tmp_path, json.dumps({**MINIMAL, "inputs": inputs, "weights": {"base": "~nobody_has_this/w"}})
    )
    job = load_job(path)

    assert str(tmp_path / "data/rows.jsonl") == job.inputs["dataset"].url
    assert job.inputs["controls"].url == "file:///abs"
    assert str(tmp_path / "~nobody_has_this/w") == job.weights["base"].url
    assert read_job(json.loads(path.read_text())).identifier() == job.job_id


def test_the_document_reads_back(tmp_path: Path):
    """What is stored as job.json is the job."""
    job = load_job(written(tmp_path, json.dumps({**MINIMAL, "hyperparameters": {"updates": 3}})))

    assert job == read_job(json.loads(json.dumps(job.document())))


@pytest.mark.parametrize(
    ("kept", "reason"),
    [
        (None, "no job in .*; expected the directory of a job; change DIR"),
        ('{"trainer":', "job.json is not JSON: .*; change DIR"),
        ("[]", "a job that is "),
    ],
)
def test_what_a_directory_keeps_as_its_job(tmp_path: Path, kept: str | None, reason: str):
    """Commands that look into one tell what is wrong with it."""
    if kept is not None:
        (tmp_path / "job.json").write_text(kept)
    with pytest.raises(BadJob, match=reason):
        begun_job(tmp_path)
    (tmp_path / "job.json").write_text(json.dumps(MINIMAL))

    assert begun_job(tmp_path).trainer == "reader"
