"""Base weights on disk."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from app_trainer_sdk.errors import BadData, InputMissing
from trainer_images.text import weights
from trainer_images.text.models import MODELS


def test_a_gguf_file_becomes_an_ordinary_folder(conversion):
    """The folder holds bf16 weights with tied embeddings, the tokenizer and the chat template."""
    folder, facts = conversion
    model = weights.load_model(folder, dtype=torch.bfloat16, keep_layers=1)

    assert MODELS[0].parameters == facts["parameters"]
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert "quantization_config" not in (folder / "config.json").read_text()
    assert (folder / "chat_template.jinja").is_file()
    assert len(weights.load_tokenizer(folder)) == MODELS[0].architecture["vocab_size"]


def test_the_catalog_states_the_architecture_of_the_file(folder):
    """Every entry of the row's architecture is that of the converted configuration."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder).to_dict()
    stated = {name: value for name, value in MODELS[0].architecture.items() if name != "rms_norm_eps"}

    assert stated == {name: config[name] for name in stated}
    assert config["rms_norm_eps"] == pytest.approx(MODELS[0].architecture["rms_norm_eps"], rel=1e-6)


def test_only_a_gguf_file_is_converted(make_run, folder, gguf_file):
    """A folder is used as it is; a file gets one phase, keyed by its digest and the converter."""
    run = make_run(base=gguf_file)
    (phase,) = weights.phases(run)

    assert weights.phases(make_run(base=folder)) == ()
    assert folder == weights.weights_folder(make_run(base=folder))
    assert {"weights": MODELS[0].weights["base"].sha256, "converter": 1} == phase.key


def test_a_file_that_is_not_the_catalogs_is_refused(make_run, tmp_path):
    """A GGUF file of another digest names both digests."""
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")

    with pytest.raises(BadData, match=MODELS[0].weights["base"].sha256):
        weights.convert(make_run(base=other), tmp_path)


def test_a_folder_without_a_model_is_refused(make_run, tmp_path):
    """The message names the folder and what it should hold."""
    with pytest.raises(InputMissing, match=r"config.json"):
        weights.weights_folder(make_run(base=tmp_path))


def test_the_identity_is_never_a_path(make_run, folder, gguf_file):
    """Weights of the Hub keep name and commit; those out of GGUF the catalog's name and the file's digest."""
    source = MODELS[0].weights["base"]

    assert (source.hub, source.revision) == weights.base_identity(make_run(base=folder))
    assert (MODELS[0].name, source.sha256) == weights.base_identity(make_run(base=gguf_file))
    own = dataclasses.replace(make_run(base=folder), model=dataclasses.replace(MODELS[0], weights={}))
    assert (MODELS[0].name, "") == weights.base_identity(own)
