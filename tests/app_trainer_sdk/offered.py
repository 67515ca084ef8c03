"""A trainer whose catalog has one of everything that ``describe`` tells."""

from __future__ import annotations

from typing import ClassVar

from empty_hooks import OWED

from app_trainer_sdk.catalog import Floor, ModelRow, Requirements, WeightSource
from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.describe import describe_document
from app_trainer_sdk.hyperparameters import Hyperparameters, setting
from app_trainer_sdk.values import Input

MEASURED = {"card": "H200", "date": "2026-11-30", "settings": {"microbatch": 1}}

HUB = WeightSource("abc123", hub="owner/tiny", size_bytes=1_000)


class ToySettings(Hyperparameters):
    """Settings of a toy."""

    max_length: int = setting(64, "Longest row.", unit="tokens", ge=1, le=1_000)


class Toy(SupervisedTrainer):
    name = "toy"
    version = "3"
    methods = ("lora", "full")
    models = (
        ModelRow(
            "tiny-1m", "Tiny", 1_234_567, licence="Apache-2.0",
            weights={"base": WeightSource("abc123", hub="owner/tiny", package="tiny-weights", file="tiny.gguf",
                                          sha256="00ff", size_bytes=1_000), "teacher": HUB},
            floors={"lora": Floor(1.5, "measured", MEASURED), "full": Floor(2.25, "predicted")},
            defaults={"lora": {"learning_rate": 3e-4}},
        ),
        ModelRow("nameless", "Nameless", 999, weights={"base": WeightSource("x", hub="owner/x")}),
    )  # fmt: skip
    hyperparameters_class = ToySettings
    defaults: ClassVar = {"lora": {"learning_rate": 1e-4, "weight_decay": 0.1}}
    inputs: ClassVar = {"dataset": Input("Rows."), "hints": Input("More.", required=False)}
    artifacts: ClassVar = {"lora": ("adapter", "samples"), "full": ("weights",)}
    preparation = ("encode",)
    requirements = Requirements(host_memory_gib=8, compute_capability="8.0")
    vars().update(OWED)


#: What ``describe`` tells of it; tests read it and leave it as it is.
DOCUMENT = describe_document([Toy])
TOY = DOCUMENT["trainers"][0]
