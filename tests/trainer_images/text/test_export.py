"""Artifacts that load as their users load them, and answer as they did before export."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.values import Snapshot
from trainer_images.text import export, model, weights

SETTINGS = {
    "keep_layers": 2, "max_new_tokens": 4, "control_prompts": 2, "held_out_predictions": 3,
    "validation_share": 0.1, "test_share": 0.2,
}  # fmt: skip
REPLAY = """
import json, pathlib, sys
from app_trainer_sdk.handle import Run
from trainer_images.text.models import MODELS
from trainer_images.text.trainer import TextTrainer
asked = json.load(sys.stdin)
for method, question in asked.items():
    path = pathlib.Path(question["directory"])
    run = Run(
        settings=TextTrainer.hyperparameters_class.read(question["settings"]), model=MODELS[0], method=method,
        directory=path, cache=path, weights={"base": pathlib.Path(question["base"])},
    )
    print(json.dumps(TextTrainer().replay(run, path, question["controls"])))
assert "bitsandbytes" not in sys.modules, "a second for what no artifact needs"
"""


def trained(run):
    """A snapshot whose tensors are those of training, moved far enough to change the answers."""
    root = model.build_model(run, weights=True).root
    tensors = {
        f"model/{name}": each.detach() + 0.5 * torch.randn_like(each)
        for name, each in root.named_parameters()
        if each.requires_grad
    }
    return Snapshot(tensors)


@pytest.fixture(scope="module")
def exported():
    """Artifacts by method, made once."""
    return {}


@pytest.fixture
def artifacts(exported, make_run, narrow, dictionary, tmp_path_factory):
    for method in ("lora", "full"):
        if method not in exported:
            run = make_run(dictionary[:20], method=method, base=narrow, **SETTINGS)
            directory = tmp_path_factory.mktemp(method)
            exported[method] = export.export(run, trained(run), directory), directory
    return exported


def test_both_artifacts_answer_alike_in_a_new_process(artifacts, narrow):
    """A new process loads adapter and weights and gives, text for text, the answers from before export."""
    asked = {
        method: {
            "directory": str(directory / artifact.name), "base": str(narrow), "settings": SETTINGS,
            "controls": artifact.controls,
        }
        for method, (artifact, directory) in artifacts.items()
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", REPLAY], input=json.dumps(asked), capture_output=True, text=True, check=True
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]

    assert [artifacts[method][0].expected for method in asked] == answers


@pytest.mark.parametrize("method", ["lora", "full"])
def test_training_shows_in_the_comparison(artifacts, method):
    """The facts hold prompt, reference and both answers in the recorded precision, and the answers differ."""
    artifact, _ = artifacts[method]
    comparison = artifact.facts["comparison"]

    assert artifact.facts["dtype"] == "bf16"
    assert [row["after"] for row in comparison] == artifact.expected
    assert any(row["before"] != row["after"] for row in comparison)
    assert all(row["prompt"].startswith("Define: ") for row in comparison)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_held_out_predictions_are_kept(artifacts, method):
    """predictions.jsonl has the asked number of test rows, beginning with the control prompts."""
    artifact, directory = artifacts[method]
    lines = (directory / "predictions/predictions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]

    assert {"test"} == {row["split"] for row in rows}
    assert len(rows) == artifact.facts["predictions"] == 3
    assert [row["prediction"] for row in rows[:2]] == artifact.expected


def test_the_adapter_is_a_standard_peft_folder(artifacts, narrow):
    """peft loads the adapter, whose configuration names the base by name and revision, not by path."""
    from peft import PeftModel

    directory = artifacts["lora"][1] / "adapter"
    config = json.loads((directory / "adapter_config.json").read_text())
    base = weights.load_model(narrow, dtype=torch.float32, keep_layers=2)
    with model.lean_peft():
        loaded = PeftModel.from_pretrained(base, directory)

    assert config["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert config["target_modules"] == sorted(config["target_modules"])  # a set's order is no run's own
    assert config["revision"] == "12fd25f77366fa6b3b4b768ec3050bf629380bac"
    assert str(narrow.parent) not in "".join(each.read_text() for each in directory.glob("*.[jm]*"))
    assert any("lora_A" in name for name, _ in loaded.named_parameters())


def test_the_weights_are_a_standard_transformers_folder(artifacts):
    """transformers loads weights, tokenizer and chat template; the tied output layer is stored once."""
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = artifacts["full"][1] / "weights"
    loaded = AutoModelForCausalLM.from_pretrained(directory)
    with safe_open(directory / "model.safetensors", "pt") as file:
        names = set(file.keys())

    assert AutoTokenizer.from_pretrained(directory).chat_template
    assert loaded.dtype == torch.bfloat16
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert "lm_head.weight" not in names


def test_a_checkpoint_of_another_model_is_refused(make_run, narrow, dictionary, tmp_path):
    """Missing and unknown tensors are an error that names one, and nothing is written."""
    run = make_run(dictionary[:4], base=narrow, **SETTINGS | {"keep_layers": 1, "max_new_tokens": 1})

    with pytest.raises(InternalError, match="lora_A"):
        export.export(run, Snapshot({"model/other": torch.zeros(1)}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
