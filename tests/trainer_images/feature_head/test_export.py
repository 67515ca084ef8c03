"""A head that loads again, with the backbone it was trained on and no other."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from app_trainer_sdk.errors import InputMissing
from app_trainer_sdk.values import Snapshot
from trainer_images.feature_head import export, head
from trainer_images.feature_head.weights import FILE

REPLAY = """
import json, pathlib, sys
from app_trainer_sdk.handle import Run
from trainer_images.feature_head.models import MODELS
from trainer_images.feature_head.trainer import FeatureHeadTrainer
folder, base, dataset = map(pathlib.Path, sys.argv[1:])
run = Run(
    settings=FeatureHeadTrainer.hyperparameters_class.read({}), model=MODELS[1], method="head",
    directory=folder, cache=folder, weights={"base": base}, inputs={"dataset": dataset},
)
print(json.dumps(FeatureHeadTrainer().replay(run, folder, json.load(sys.stdin))))
"""


def trained(run):
    torch.manual_seed(3)
    module = head.build_model(run, weights=True).root
    return Snapshot({f"model/{name}": each.detach() for name, each in module.named_parameters()})


def test_it_answers_alike_in_a_new_process(make_run, draw, converted, tmp_path):
    """A new process loads backbone and head, and classifies as before export; no control is a path of here."""
    root = draw(tmp_path / "data", {"cat": 8, "dog": 8})
    run = make_run(root, base=converted / FILE, hidden_width=4, test_share=0.5)
    artifact = export.export(run, trained(run), tmp_path / "out")
    command = [sys.executable, "-c", REPLAY, tmp_path / "out/head", converted / FILE, root]
    done = subprocess.run(
        command, input=json.dumps(artifact.controls), capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == artifact.expected
    assert len({row["probability"] for row in artifact.expected}) > 1
    assert str(tmp_path) not in json.dumps(artifact.controls)


def test_the_artifact_says_what_it_needs(make_run, tmp_path):
    """Class names in order, the head's sizes, and the backbone by name, revision, digest and preprocessing."""
    rows = [{"text": f"text {index}", "label": ["zebra", "ant", "bee"][index % 3]} for index in range(30)]
    run = make_run(rows)
    artifact = export.export(run, trained(run), tmp_path / "out")
    config = json.loads((tmp_path / "out/head/config.json").read_text())

    assert config["classes"] == ["ant", "bee", "zebra"]
    assert config["head"] == {"features": 384, "classes": 3, "hidden_width": 0, "dropout": 0.1}
    assert config["backbone"]["sha256"] == run.model.weights["base"].sha256
    assert config["preprocessing"]["pooling"] == "mean over tokens"
    assert set(load_file(tmp_path / "out/head/model.safetensors")) == {"output.weight", "output.bias"}
    assert artifact.facts["comparison_split"] == "test"
    assert [row["after"] for row in artifact.facts["comparison"]] == artifact.expected


def test_another_backbone_is_refused(make_run, draw, converted, tmp_path):
    """I6: a head never answers on features it was not trained on."""
    root = draw(tmp_path / "data", {"cat": 3, "dog": 3})
    run = make_run(root, base=converted / FILE)
    artifact = export.export(run, trained(run), tmp_path / "out")
    tensors = load_file(converted / FILE)
    save_file({**tensors, "stem.bias": tensors["stem.bias"] + 1}, tmp_path / "other.safetensors")
    other = make_run(root, base=tmp_path / "other.safetensors")

    with pytest.raises(InputMissing, match=r"a backbone with the SHA-256 .*which the head was trained on"):
        export.replay(other, tmp_path / "out/head", artifact.controls)


def test_controls_can_be_decoded(make_run, draw, converted, tmp_path):
    """A picture that was skipped is no control."""
    root = draw(tmp_path / "data", {"cat": 3, "dog": 3})
    (root / "dog/002.png").write_bytes(b"no picture")
    run = make_run(root, base=converted / FILE, on_corrupt="skip", validation_share=0, test_share=0)
    artifact = export.export(run, trained(run), tmp_path / "out")

    assert {"cat/000.png", "cat/001.png", "cat/002.png", "dog/000.png", "dog/001.png"} == {
        each["picture"] for each in artifact.controls
    }
