"""A frozen backbone at work."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from app_trainer_sdk.errors import BadData
from trainer_images.feature_head.backbone import Extractor, load_extractor, preprocessing


class WithBatchNorm(nn.Module):
    """A backbone whose statistics would move in training mode."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))

    def forward(self, pixels):
        return self.layers(pixels)


def test_a_backbone_computes_as_the_key_of_its_features_says():
    """On a card convolutions in fp32 are fp32 and of one kernel; other code finds its own settings again."""
    seen = []

    class Looks(nn.Module):
        def forward(self, pixels):
            seen.append((torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic))
            return pixels

    before = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic
    extractor = Extractor(
        Looks(), lambda rows: ({"pixels": torch.ones(1, 4)}, [""]), device=torch.device("cpu")
    )
    extractor([""])

    assert seen == [(False, True)]
    assert (torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic) == before


def test_nothing_of_a_backbone_moves():
    """I6: batch norm's running_mean stays, dropout does nothing, and no parameter or answer has a gradient."""
    torch.manual_seed(0)
    pixels = torch.randn(8, 4)
    extractor = Extractor(
        WithBatchNorm().train(), lambda rows: ({"pixels": pixels}, [""] * 8), device=torch.device("cpu")
    )
    before = {name: each.clone() for name, each in extractor.module.state_dict().items()}
    first, _ = extractor([""] * 8)
    again, _ = extractor([""] * 8)

    assert torch.equal(first, again)
    assert not first.requires_grad
    assert not any(each.requires_grad for each in extractor.module.parameters())
    assert all(torch.equal(before[name], each) for name, each in extractor.module.state_dict().items())


def test_it_works_in_the_plans_precision_and_answers_in_fp32():
    """Weights and pictures are bf16 when the plan says so; token ids stay whole numbers."""
    seen = []

    class Watching(nn.Module):
        def forward(self, pixels, ids):
            seen.append((pixels.dtype, ids.dtype))
            return pixels

    tensors = {"pixels": torch.ones(1, 2), "ids": torch.ones(1, dtype=torch.int64)}
    extractor = Extractor(
        Watching(), lambda rows: (tensors, [""]), device=torch.device("cpu"), dtype=torch.bfloat16
    )

    assert extractor([""])[0].dtype == torch.float32
    assert seen == [(torch.bfloat16, torch.int64)]


def test_weights_of_another_architecture_are_refused(make_run, tmp_path, draw):
    """The file, the model, and what does not fit."""
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    run = make_run(draw(tmp_path / "data", {"a": 1}), base=tmp_path / "other.safetensors")

    with pytest.raises(BadData, match=r"other.safetensors does not fit resnet50-thin: .*/weights/base"):
        load_extractor(run)


def test_preprocessing_is_all_that_moves_features(make_run, tmp_path, draw):
    """Another length of texts is another preprocessing; for pictures it is none."""
    root = draw(tmp_path / "data", {"a": 1})

    assert preprocessing(make_run([])) != preprocessing(make_run([], max_length=64))
    assert preprocessing(make_run(root)) == preprocessing(make_run(root, max_length=64))
