"""Owns what is handed over: the head, the class names, the identity of its backbone, and proof that it loads.

It must not know how the head was trained.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from app_trainer_sdk.errors import InputMissing
from app_trainer_sdk.files import write_json
from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import JSON, Artifact, Snapshot
from trainer_images.feature_head.backbone import Extractor, load_extractor, preprocessing
from trainer_images.feature_head.head import Head, head_sizes
from trainer_images.feature_head.rows import SPLITS, Row
from trainer_images.feature_head.splits import Splits, class_names, read_splits
from trainer_images.feature_head.weights import backbone_digest, backbone_identity

WEIGHTS, CONFIG = "model.safetensors", "config.json"
#: What a user writes to load the head; it reads features of the backbone that ``config.json`` names.
RELOAD = """import json
from safetensors.torch import load_file
from trainer_images.feature_head.head import Head
config = json.load(open(f"{folder}/config.json"))
head = Head(**config["head"])
head.load_state_dict(load_file(f"{folder}/model.safetensors"))
head.eval()"""


def export(run: Run, saved: Snapshot, directory: Path) -> Artifact:
    """Write ``head``: ``model.safetensors`` and ``config.json``.

    Returns:
        the artifact, with held-out rows as controls and what the exported head says of them.
    """
    splits, _ = read_splits(run)
    folder = directory / "head"
    folder.mkdir(parents=True)
    save_file({name: each.contiguous() for name, each in saved.section("model").items()}, folder / WEIGHTS)
    config = {
        "classes": list(class_names(splits)),
        "head": head_sizes(run),
        "backbone": backbone_identity(run),
        "preprocessing": preprocessing(run),
        "precision": str(run.dtype),
    }
    write_json(folder / CONFIG, config)
    split, rows = _shown(run, splits)
    classify = Classifier(run, folder)
    controls, expected, comparison = [], [], []
    for row in run.track(rows, "classify controls"):
        answer, problem = classify(row.content)
        if not problem:
            controls.append(_control(run, row))
            expected.append(answer)
            shown = row.content if isinstance(row.content, str) else row.place
            comparison.append({"prompt": shown, "reference": row.label, "after": answer})
    facts: dict[str, JSON] = {
        "classes": len(config["classes"]), "backbone": config["backbone"], "comparison_split": split,
        "comparison": comparison,
    }  # fmt: skip
    return Artifact("head", controls=controls, expected=expected, facts=facts, reload=RELOAD)


def replay(run: Run, directory: Path, controls: Sequence[JSON]) -> Sequence[JSON]:
    """Classify the controls with the artifact in the folder ``directory`` and the backbone it names."""
    classify = Classifier(run, directory)
    return [classify(_content(run, each))[0] for each in run.track(controls, "classify controls")]


class Classifier:
    """An exported head behind its backbone, one content at a time, so that no answer depends on another.

    Raises:
        InputMissing: the backbone here is not the one the head was trained on.
    """

    def __init__(self, run: Run, folder: Path) -> None:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        found, wanted = backbone_digest(run), config["backbone"]
        if found != wanted["sha256"]:
            raise InputMissing(
                f"a backbone with the SHA-256 {found}",
                expected=f"{wanted['name']} with {wanted['sha256']}, which the head was trained on",
                setting="/weights/base",
            )
        self.classes: Sequence[str] = config["classes"]
        self._extract: Extractor = load_extractor(run)
        self._head = Head(**config["head"])
        self._head.load_state_dict(load_file(folder / WEIGHTS))
        self._head.eval()

    @torch.inference_mode()
    def __call__(self, content: str | Path) -> tuple[dict[str, JSON], str]:
        """The likeliest class with its probability, and why there is none, or nothing."""
        features, problems = self._extract([content])
        likely = torch.softmax(self._head(features)[0], -1).max(-1)
        return {
            "label": self.classes[int(likely.indices)],
            "probability": round(float(likely.values), 4),
        }, problems[0]


def _shown(run: Run, splits: Splits) -> tuple[str, Sequence[Row]]:
    """Rows to show, and their split: test before validation, and training rows when nothing is held out."""
    name = next(name for name in reversed(SPLITS) if splits[name])
    rows = sorted(splits[name], key=lambda row: row.digest)  # mixed, where files list class after class
    return name, rows[: run.settings.control_rows]


def _control(run: Run, row: Row) -> dict[str, JSON]:
    """A question: the text itself, or the picture's place below its input."""
    if isinstance(row.content, str):
        return {"text": row.content}
    name = next(name for name, root in run.inputs.items() if row.content.is_relative_to(root))
    return {"input": name, "picture": row.place}


def _content(run: Run, control: Any) -> str | Path:
    return control["text"] if "text" in control else run.inputs[control["input"]] / control["picture"]
