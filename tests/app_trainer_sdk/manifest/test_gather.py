"""A run's manifest: whole after success, honest after less, and never a secret in it."""

from __future__ import annotations

import io
import json

import jsonschema
from loopback import reply

from app_trainer_sdk.attempt.admission import run_job
from app_trainer_sdk.console import Console
from app_trainer_sdk.files import sha256_tree
from app_trainer_sdk.manifest.document import Manifest, manifest_schema
from app_trainer_sdk.manifest.software import SDK, source_digest

TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}


def test_a_finished_run_tells_everything(finished):
    """What was asked, what it became, by what, where, and what came of it; valid by its own schema."""
    document = json.loads((finished.directory / "manifest.json").read_text())
    jsonschema.validate(document, manifest_schema())
    told = Manifest.model_validate(document)
    digest, size = sha256_tree(finished.directory / "artifacts/weights")

    assert (told.status, told.exit_code, told.job["hyperparameters"]["updates"]) == ("succeeded", 0, 12)
    assert told.settings["updates"].effective == 12
    assert told.settings["mixed_precision"].why
    assert told.determinism.seed == told.settings["seed"].effective
    assert told.determinism.flags["cudnn_benchmark"] is False
    assert told.code.sdk_digest == source_digest(SDK)
    assert told.environment.torch.version == told.packages["torch"].version
    assert told.environment.kernels
    assert told.dataset.fingerprint
    assert {"examine", "train", "export", "replay"} <= {each.phase for each in told.phases}
    assert (told.outputs[0].sha256, told.outputs[0].bytes) == (digest, size)
    assert not (finished.directory / "manifest.json").samefile(finished.directory / "result.json")


def test_the_instructions_to_reload_are_true(finished):
    """The lines, as a user runs them."""
    told = json.loads((finished.directory / "manifest.json").read_text())["reload"]
    names = {"folder": str(finished.directory / told["folder"])}
    exec(told["python"], names)

    assert told["asked_again"]
    assert names["weights"]["1.weight"].numel() > 0


def test_a_run_that_failed_before_its_plan_tells_how_far_it_came(tmp_path, monkeypatch, serve):
    """And no secret: signatures of URLs, tokens in them, callbacks."""
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("APP_TRAINER_UPLOAD_WAIT_SECONDS", "0")
    job = tmp_path / "job.json"
    place = serve(lambda handler, request: reply(handler, 404)).url
    url = place.replace("//", "//user:planted-1@") + "/rows?X-Amz-Signature=planted-2"
    callbacks = {"url": f"{place}/?token=planted-3"}
    job.write_text(json.dumps({**TOY, "inputs": {"dataset": url}, "callbacks": callbacks}))
    code = run_job(job, tmp_path / "dir", console=Console(io.StringIO()))
    text = (tmp_path / "dir/manifest.json").read_text()
    told = Manifest.model_validate_json(text)

    assert (told.exit_code, told.failure["code"]) == (code, code)
    assert (told.settings, told.outputs, told.reload) == ({}, [], None)
    assert "/inputs/dataset/url" in told.cut
    assert "planted" not in text
