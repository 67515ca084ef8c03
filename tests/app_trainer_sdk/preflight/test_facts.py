"""What is asked of the machine and of the job, before anything is judged."""

from __future__ import annotations

import dataclasses

import pytest

from app_trainer_sdk.cache.weights import Cache, set_key
from app_trainer_sdk.catalog import WeightSource
from app_trainer_sdk.job import check_job, read_job
from app_trainer_sdk.preflight.facts import REQUIRE_GPU, disk_of, needs_of, used_bytes
from app_trainer_sdk.testing.toys import ToyTrainer

TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}
SOURCE = WeightSource(revision="r", hub="owner/name", size_bytes=7)


def needs(cache, environment=None, source=SOURCE, **parts):
    job = read_job({**TOY, **parts})
    settings, row, method = check_job(job, ToyTrainer)
    row = dataclasses.replace(row, weights={"base": source})
    return needs_of(
        job, ToyTrainer, (settings, row, method), ranks=1, cache=cache, environment=environment or {}
    )


def test_only_what_is_still_to_fetch_counts(tmp_path):
    """Weights until the cache has them, none from an installed package; inputs and files of known size."""
    url = {"url": "https://host/rows", "size": 5}

    assert needs(tmp_path, inputs={"dataset": url}).input_bytes == 5
    assert needs(tmp_path).weight_bytes == 7
    assert needs(tmp_path, source=dataclasses.replace(SOURCE, package="pytest")).weight_bytes == 0

    files = [{"path": "a", "size": 3, "urls": ["https://a"]}, {"path": "b", "size": 4, "urls": ["https://b"]}]

    assert needs(tmp_path, weights={"base": {"files": files}}).weight_bytes == 7
    assert needs(tmp_path, weights={"base": {"url": "https://a/w", "size": 9}}).weight_bytes == 9

    Cache(tmp_path).write_set(set_key("hub", "owner/name", "r"), "title", {})

    assert needs(tmp_path).weight_bytes == 0


@pytest.mark.parametrize(
    ("word", "required"), [("1", True), ("true", True), ("", False), ("0", False), ("No", False)]
)
def test_a_gpu_is_required_by_a_variable(tmp_path, word, required):
    assert needs(tmp_path, {REQUIRE_GPU: word}).require_gpu is required


def test_a_folder_that_is_not_there_yet_has_the_disk_of_the_one_above(tmp_path):
    place = disk_of(tmp_path / "a/b")

    assert (place.system, place.problem) == (tmp_path.stat().st_dev, "")
    assert place.free_bytes > 0

    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/c").write_bytes(b"123")

    assert used_bytes(tmp_path / "a") == 3
