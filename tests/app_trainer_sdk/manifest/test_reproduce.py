"""The job that makes a run again, and what is other here."""

from __future__ import annotations

import json

import pytest

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.manifest.document import Manifest
from app_trainer_sdk.manifest.reproduce import compare, job_again, load_manifest, main


@pytest.fixture(scope="module")
def manifest(finished):
    return load_manifest(finished.directory / "manifest.json")


def changed(manifest, **parts):
    return Manifest.model_validate({**manifest.document(), **parts})


def test_a_run_that_is_made_again_has_bit_identical_artifacts(finished, run_toy, tmp_path, capsys):
    """From the manifest alone, in another directory: the same digests of the same files."""
    place = tmp_path / "again.json"

    assert main([str(finished.directory / "manifest.json"), "--write-job", str(place)]) == 0
    assert "nothing is other here" in capsys.readouterr().out

    again = run_toy(document=json.loads(place.read_text()))
    then, now = finished.result()["outputs"], again.result()["outputs"]

    assert again.code == 0
    assert [each["sha256"] for each in now] == [each["sha256"] for each in then]
    assert again.result()["job_id"] != finished.result()["job_id"]  # every setting is said now


def test_the_commands_that_are_told_can_be_run(manifest, tmp_path, capsys):
    """Without --write-job the one that writes the job comes first, with the places that were given."""
    place = tmp_path / "manifest.json"
    place.write_text(json.dumps(manifest.document()))
    rows = str(tmp_path / "my rows")
    main([str(place), "--input", f"dataset={rows}"])
    write, run = capsys.readouterr().out.splitlines()[-2:]

    assert write.endswith(f"app-trainer reproduce {place} '--input=dataset={rows}' --write-job job.json")
    assert run.startswith("run: app-trainer run --job job.json --job-dir ")


def test_every_setting_is_said(manifest):
    """So that no default of another version, and no card, decides anew."""
    hyperparameters = job_again(manifest)["hyperparameters"]

    assert "auto" not in hyperparameters.values()
    assert {"updates", "seed", "microbatch", "mixed_precision", "optim_8bit"} <= hyperparameters.keys()


def test_what_is_other_is_listed_and_decides_the_code(manifest, tmp_path, capsys):
    """Another torch computes other bits; another linter does not."""
    packages = {**manifest.document()["packages"], "numpy": {"version": "0", "digest": None}}
    other = changed(manifest, packages={**packages, "ruff": {"version": "0", "digest": None}})
    found = {each.field: each.decides for each in compare(other, {})}
    place = tmp_path / "manifest.json"
    place.write_text(json.dumps(other.document()))

    assert found["packages/numpy"]
    assert not found["packages/ruff"]
    assert main([str(place), "--json"]) == 78

    document = json.loads(capsys.readouterr().out)

    assert not document["same"]
    assert document["differences"][0]["field"] == "packages/numpy"


@pytest.mark.parametrize(
    ("part", "field"),
    [({"torch": {"version": "2.12.0"}}, "environment/torch"),
     ({"devices": ["NVIDIA H200"]}, "environment/devices"),
     ({"threads": 77}, "environment/threads"), ({"processor": "another"}, "environment/processor"),
     ({"driver": "535"}, "environment/driver"), ({"variables": {"X": "1"}}, "environment/variables/X")],
)  # fmt: skip
def test_each_part_of_the_environment_is_compared(manifest, part, field):
    environment = {**manifest.document()["environment"], **part}

    assert field in [each.field for each in compare(changed(manifest, environment=environment), {})]


def test_a_place_that_was_secret_must_be_given(manifest):
    """Its query is not kept."""
    job = {**manifest.job, "inputs": {"dataset": {"url": "https://host/rows"}}}
    signed = changed(manifest, job=job, cut=["/inputs/dataset/url"])

    with pytest.raises(BadJob, match="--input dataset=PATH-OR-URL"):
        job_again(signed)
    assert job_again(signed, inputs={"dataset": "/data/rows"})["inputs"]["dataset"]["url"] == "/data/rows"


def test_a_run_without_a_plan_cannot_be_made_again(manifest, tmp_path, capsys):
    place = tmp_path / "manifest.json"
    place.write_text(json.dumps(changed(manifest, settings={}).document()))

    assert main([str(place)]) == 64
    assert "before it had a plan" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "{}", "[]"])
def test_what_is_no_manifest_is_refused(tmp_path, text, capsys):
    place = tmp_path / "manifest.json"
    place.write_text(text)

    assert main([str(place)]) == 64
    assert main([str(place), "--input", "x"]) == 64
    assert capsys.readouterr().err
