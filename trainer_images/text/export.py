"""Owns what is handed over: the adapter or the weights, the held-out predictions, and proof that they load.

Everything is rebuilt from the base weights and the checkpoint; training's objects are gone. It must not know
how the model was trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import JSON, Artifact, Snapshot
from trainer_images.text.answers import answer_all, control
from trainer_images.text.model import add_lora, lean_peft
from trainer_images.text.rows import Row
from trainer_images.text.splits import HELD_OUT, split_rows
from trainer_images.text.weights import base_identity, load_model, load_tokenizer, weights_folder

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
NAMES = {"lora": "adapter", "full": "weights"}


def export(run: Run, saved: Snapshot, directory: Path) -> Artifact:
    """Write ``adapter`` or ``weights`` and ``predictions`` into ``directory``.

    Returns:
        the artifact, with control prompts and the answers before it was written, in the export precision.

    Raises:
        InternalError: the checkpoint holds tensors that this model does not have, or lacks some.
        StopRequested: somebody asked to stop.
    """
    split, rows = _held_out(run)
    shown = rows[: run.settings.control_prompts]
    controls = [control(run, row.prompt) for row in shown]
    tokenizer = load_tokenizer(weights_folder(run), run.allow)
    model = _base_model(run)
    before = answer_all(run, model, tokenizer, controls)
    model = _trained(run, model, saved.section("model"))
    after = answer_all(run, model, tokenizer, controls)
    _write_model(run, model, tokenizer, directory / NAMES[run.method])
    predicted = rows[: run.settings.held_out_predictions] if split != "train" else []
    more = answer_all(run, model, tokenizer, [control(run, row.prompt) for row in predicted[len(shown) :]])
    _write_predictions(directory / "predictions", split, predicted, [*after, *more])
    comparison = [
        {"prompt": _prompt(row), "reference": row.reference, "before": old, "after": new}
        for row, old, new in zip(shown, before, after, strict=True)
    ]
    base, revision = base_identity(run)
    facts: dict[str, JSON] = {
        "dtype": run.settings.export_dtype,
        "base": {"name": base, "revision": revision, "licence": run.model.licence},
        "comparison_split": split,
        "comparison": comparison,
        "predictions": len(predicted),
    }
    return Artifact(NAMES[run.method], controls=controls, expected=after, facts=facts, reload=_reload(run))


def replay(run: Run, directory: Path, controls: Sequence[JSON]) -> list[JSON]:
    """Answer the controls with the artifact in the folder ``directory``, loaded as its user would load it."""
    tokenizer = load_tokenizer(directory, run.allow)
    if run.method == "lora":
        with lean_peft():
            from peft import PeftModel

            model = PeftModel.from_pretrained(_base_model(run), directory, local_files_only=True)
    else:
        model = load_model(directory, dtype=DTYPES[run.settings.export_dtype], allowed=run.allow)
    if run.device is not None:
        model.to(run.device)
    return list(answer_all(run, model, tokenizer, controls))  # type: ignore[arg-type]


def _reload(run: Run) -> str:
    """What a user writes to load the artifact; ``base`` is where the base weights lie."""
    tokenizer = "tokenizer = AutoTokenizer.from_pretrained(folder)"
    if run.method != "lora":
        load = "model = AutoModelForCausalLM.from_pretrained(folder)"
        return "\n".join(["from transformers import AutoModelForCausalLM, AutoTokenizer", tokenizer, load])
    name, revision = base_identity(run)
    shorter = f", num_hidden_layers={run.settings.keep_layers}" if run.settings.keep_layers else ""
    return "\n".join(
        [
            "from peft import PeftModel",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            tokenizer,
            f"model = AutoModelForCausalLM.from_pretrained(base{shorter})  # {name} {revision}".rstrip(),
            "model = PeftModel.from_pretrained(model, folder)",
        ]
    )


def _held_out(run: Run) -> tuple[str, Sequence[Row]]:
    """Rows to show, and their split: test before validation, and training rows when nothing is held out."""
    splits = split_rows(run)
    name = next((name for name in reversed(HELD_OUT) if splits[name]), "train")
    return name, splits[name]


def _base_model(run: Run) -> Any:
    settings = run.settings
    model = load_model(
        weights_folder(run), dtype=DTYPES[settings.export_dtype], keep_layers=settings.keep_layers,
        allowed=run.allow,
    )  # fmt: skip
    return model if run.device is None else model.to(run.device)


def _trained(run: Run, model: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The model with the checkpoint's tensors in place; peft keeps its matrices in fp32 beside the base."""
    if run.method == "lora":
        model = add_lora(run, model)
    expected = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if strange := sorted(expected.symmetric_difference(tensors)):
        raise InternalError(
            f"the checkpoint and the model differ in {len(strange)} tensors, such as {strange[0]}",
            expected=f"the {len(expected)} tensors that train",
        )
    model.load_state_dict(dict(tensors), strict=False)
    return model


def _write_model(run: Run, model: Any, tokenizer: Any, folder: Path) -> None:
    run.check()
    if run.method == "lora":
        _sort_targets(model)
        # With "auto" peft would ask the Hub whether the vocabulary has grown.
        model.save_pretrained(folder, save_embedding_layers=False)
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _sort_targets(model: Any) -> None:
    """Peft keeps names of modules as a set, whose order differs between processes: equal runs, equal files."""
    for config in model.peft_config.values():
        if not isinstance(config.target_modules, str):
            config.target_modules = sorted(config.target_modules)


def _write_predictions(folder: Path, split: str, rows: Sequence[Row], answers: Sequence[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "predictions.jsonl").open("w", encoding="utf-8") as stream:
        for row, answer in zip(rows, answers, strict=False):
            line = {
                "split": split, "place": row.place, "prompt": _prompt(row),
                "reference": row.reference, "prediction": answer,
            }  # fmt: skip
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")


def _prompt(row: Row) -> JSON:
    """The prompt as its author wrote it: the text of a single message, or the conversation."""
    messages = [dict(message) for message in row.prompt]
    return messages[0]["content"] if len(messages) == 1 else messages
