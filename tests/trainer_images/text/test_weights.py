"""Base weights on disk."""

from __future__ import annotations

import dataclasses
import json

import gguf
import pytest
import torch

from app_trainer_sdk.errors import BadData, BadJob, InputMissing
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


def test_a_conversion_reads_the_index_once(monkeypatch):
    """Transformers asks for it thrice, and for the names' table once a module; afterwards gguf is as before."""
    read = []
    monkeypatch.setattr(gguf, "GGUFReader", read.append)
    monkeypatch.setattr(gguf, "get_tensor_name_map", lambda *asked: [*asked])
    before = gguf.GGUFReader, gguf.get_tensor_name_map
    with weights._index_read_once():
        for _ in range(3):
            gguf.GGUFReader("a file")
        table = gguf.get_tensor_name_map("llama", 30)

        assert table is gguf.get_tensor_name_map("llama", 30)
        assert table != gguf.get_tensor_name_map("llama", 31)
    assert read == ["a file"]
    assert before == (gguf.GGUFReader, gguf.get_tensor_name_map)


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


def test_a_list_of_one_gguf_file_is_that_file(make_run, tmp_path, gguf_file):
    """As ``app-trainer mirror`` lists a folder with one: used as the file is by its path."""
    (tmp_path / "README.md").touch()
    (tmp_path / "model.gguf").symlink_to(gguf_file)
    run, by_path = make_run(base=tmp_path), make_run(base=gguf_file)

    assert weights.is_gguf(run)
    assert [each.key for each in weights.phases(run)] == [each.key for each in weights.phases(by_path)]
    assert weights.base_identity(run) == weights.base_identity(by_path)
    own = dataclasses.replace(run, model=dataclasses.replace(MODELS[0], weights={}))
    assert weights.tokenizer_digest(own) == weights.tokenizer_digest(by_path)


def test_a_list_of_two_gguf_files_is_refused(make_run, tmp_path):
    """Nobody says which; the setting is the list's."""
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(InputMissing, match=r"2 .gguf files.*change /weights/base"):
        weights.weights_folder(make_run(base=tmp_path))


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


@pytest.fixture
def pickled(tmp_path):
    """A small model whose weights are a pickle, as older repositories have them."""
    from transformers import AutoConfig, AutoModelForCausalLM

    small = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    config = AutoConfig.for_model("llama", **small, num_attention_heads=1, num_key_value_heads=1)
    model = AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    return tmp_path, model


def test_a_pickle_is_read_only_where_the_job_allows_it(pickled):
    """And then as tensors alone."""
    folder, model = pickled

    with pytest.raises(BadJob, match='"pickle" to /allow'):
        weights.load_model(folder, dtype=torch.float32)
    with weights.quiet():
        loaded = weights.load_model(folder, dtype=torch.float32, allowed={"pickle"})

    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


def test_a_model_that_is_python_of_its_own_is_refused(tmp_path):
    """Its code is not run, and the word that would allow it is told."""
    (tmp_path / "own.py").write_text("raise SystemExit('this ran')")
    (tmp_path / "model.safetensors").touch()
    auto = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "own_kind", "auto_map": auto}))

    with pytest.raises(BadJob, match='"remote_code" to /allow'):
        weights.load_model(tmp_path, dtype=torch.float32)
