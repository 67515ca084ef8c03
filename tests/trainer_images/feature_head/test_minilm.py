"""The text backbone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from app_trainer_sdk.errors import InputMissing
from trainer_images.feature_head import minilm
from trainer_images.feature_head.backbone import load_extractor


def test_features_are_those_of_sentence_transformers(make_run, packaged):
    """transformers' own tokenizer and model, averaged over the mask and normalised, give the same numbers."""
    from transformers import AutoModel, AutoTokenizer

    texts = ["The natural equipment to accomplish some small part.", "To shorten."]
    folder = packaged["texts"].parent
    tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    expected = functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)
    features, problems = load_extractor(make_run([]))(texts)

    assert problems == ["", ""]
    assert torch.allclose(features, expected, atol=1e-6)
    assert torch.allclose(features.norm(dim=-1), torch.ones(2))


def test_long_texts_are_cut(make_run):
    """No row has more tokens than max_length."""
    tensors, _ = minilm.preparer(make_run([], max_length=8))(["word " * 50, "word"])

    assert tensors["ids"].shape == (2, 8)
    assert tensors["mask"].sum(1).tolist() == [8, 3]


def test_a_missing_tokenizer_is_told(make_run, tmp_path):
    """It must lie beside the weights."""
    with pytest.raises(InputMissing, match=r"no tokenizer.json"):
        minilm.tokenizer_file(make_run([], base=tmp_path))
