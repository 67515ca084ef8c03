"""The backbone's weights on disk."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from app_trainer_sdk.errors import BadData, InputMissing
from trainer_images.feature_head import resnet, weights
from trainer_images.feature_head.models import MODELS


def test_the_onnx_file_becomes_the_tensors_of_the_architecture(make_run, converted, draw, tmp_path):
    """Every parameter of the catalog's architecture, and no other."""
    run = make_run(draw(tmp_path / "data", {"a": 1, "b": 1}))
    tensors = load_file(converted / weights.FILE)

    assert MODELS[1].parameters == sum(each.numel() for each in tensors.values())
    assert {name: each.shape for name, each in resnet.build(run).state_dict().items()} == {
        name: each.shape for name, each in tensors.items()
    }


def test_only_onnx_is_converted(make_run, packaged, draw, converted, tmp_path):
    """One phase, keyed by the file's digest and the converter; safetensors are used as they are."""
    root = draw(tmp_path / "data", {"a": 1, "b": 1})
    (phase,) = weights.phases(make_run(root))

    assert {"weights": MODELS[1].weights["base"].sha256, "converter": 1} == phase.key
    assert weights.weights_file(make_run(root)) == converted / weights.FILE
    assert weights.phases(make_run(root, base=converted / weights.FILE)) == ()
    assert weights.phases(make_run([])) == ()
    assert weights.weights_file(make_run([])) == packaged["texts"]
    assert weights.weights_file(make_run([], base=packaged["texts"].parent)) == packaged["texts"]


def test_another_network_is_refused(make_run, draw, tmp_path):
    """A convolution that is none of a ResNet's is named."""
    import onnx
    from onnx import helper

    node = helper.make_node("Conv", ["x", "w"], ["block7/Conv:0"])
    shape = helper.make_tensor_value_info("x", 1, None)
    onnx.save(helper.make_model(helper.make_graph([node], "other", [shape], [])), tmp_path / "other.onnx")
    run = make_run(draw(tmp_path / "data", {"a": 1, "b": 1}), base=tmp_path / "other.onnx")

    with pytest.raises(BadData, match=r"block7/Conv:0.*ResNet-50.*/weights/base"):
        weights.convert(run, tmp_path)


def test_the_identity_names_the_source_or_admits_that_it_is_another(make_run, converted, tmp_path, draw):
    """Known weights are named as others find them, by revision and digest; others by the digest alone."""
    known = weights.backbone_identity(make_run([]))
    own = weights.backbone_identity(make_run(draw(tmp_path / "data", {"a": 1}), base=converted / weights.FILE))

    assert known["name"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert (MODELS[0].weights["base"].revision, MODELS[0].weights["base"].sha256) == (
        known["revision"],
        known["sha256"],
    )
    assert (own["name"], own["revision"]) == ("resnet50-thin", "")
    assert str(tmp_path) not in str(own)


def test_a_folder_without_weights_is_told(make_run, tmp_path):
    """What is missing, and where."""
    with pytest.raises(InputMissing, match=r"no model.safetensors"):
        weights.weights_file(make_run([], base=tmp_path))
