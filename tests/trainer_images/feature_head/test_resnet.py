"""The picture backbone and what is done to a picture before it."""

from __future__ import annotations

import numpy
import pytest
import torch
from PIL import Image

from trainer_images.feature_head import resnet
from trainer_images.feature_head.backbone import load_extractor


def test_features_are_those_of_the_onnx_file(make_run, draw, packaged, tmp_path):
    """The reference interpreter of ONNX gives the same 1,024 numbers, to 1e-5 of the largest."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    run = make_run(draw(tmp_path / "data", {"a": 1, "b": 1}))
    graph = (whole := onnx.load(packaged["pictures"])).graph
    pooled = [node.output[0] for node in graph.node].index("pool/AvgPool:0")
    del graph.node[pooled + 1 :], graph.output[:]
    graph.output.append(onnx.helper.make_tensor_value_info("pool/AvgPool:0", 1, None))
    pixels, _ = resnet.preparer(run)([run.inputs["dataset"] / "a/000.png"])
    expected = ReferenceEvaluator(whole).run(None, {"input:0": pixels["pixels"].permute(0, 2, 3, 1).numpy()})[0]
    features, _ = load_extractor(run)([run.inputs["dataset"] / "a/000.png"])

    assert numpy.abs(features.numpy() - expected.reshape(1, 1024)).max() < 1e-5 * numpy.abs(expected).max()


def test_pixels_are_bgr_minus_the_mean(make_run, draw, tmp_path):
    """A red picture, and what is transparent counts as white; turned pictures stand upright."""
    prepare = resnet.preparer(make_run(draw(tmp_path / "data", {"a": 1})))
    Image.new("RGB", (10, 20), (255, 0, 0)).save(tmp_path / "red.png")
    Image.new("RGBA", (10, 20), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    turned = Image.new("L", (2, 1))
    turned.putdata([0, 255])
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned by a quarter
    turned.save(tmp_path / "turned.png", exif=exif)
    tensors, problems = prepare([tmp_path / f"{name}.png" for name in ("red", "clear", "turned")])
    red, clear, upright = tensors["pixels"]
    mean = torch.tensor([104.0, 117.0, 123.0]).view(3, 1, 1)

    assert problems == ["", "", ""]
    assert torch.equal(red + mean, torch.tensor([0.0, 0, 255]).view(3, 1, 1).expand(3, 224, 224))
    assert torch.equal(clear + mean, torch.full((3, 224, 224), 255.0))
    assert torch.equal(upright[:, :, 0], upright[:, :, -1])
    assert not torch.equal(upright[:, 0], upright[:, -1])


@pytest.mark.parametrize("broken", [b"", b"no picture", "cut"])
def test_a_broken_picture_has_a_reason_and_no_exception(make_run, draw, tmp_path, broken):
    """Empty, foreign and cut files; the picture beside them is read all the same."""
    root = draw(tmp_path / "data", {"a": 1}, size=64)
    whole = root / "a/000.png"
    content = whole.read_bytes()
    (tmp_path / "broken.png").write_bytes(content[: len(content) // 2] if broken == "cut" else broken)
    tensors, problems = resnet.preparer(make_run(root))([tmp_path / "broken.png", whole])

    assert problems[0]
    assert problems[1] == ""
    assert tensors["pixels"][1].any()
