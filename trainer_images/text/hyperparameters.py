"""Owns the settings the ``text`` image adds: rows, splits, length, LoRA, and what is shown at the end.

It must not import torch, and derives no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from app_trainer_sdk.errors import Problem
from app_trainer_sdk.hyperparameters import Hyperparameters, setting

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def _as_tuple(value: Any) -> Any:
    """A list as the tuple that strict validation asks for: JSON knows only lists."""
    return tuple(value) if isinstance(value, list) else value


Targets = Annotated[tuple[Name, ...], BeforeValidator(_as_tuple), Field(min_length=1, max_length=64)]

#: Modules whose LoRA would be ignored: the loss reads their weight and never calls them.
UNADAPTABLE = ("lm_head", "embed_tokens")


class TextHyperparameters(Hyperparameters):
    """What a user may choose about the fine-tuning of a language model."""

    # The rows.
    dataset_file: str = setting("", "File inside an input that is a folder; empty takes its only .jsonl file.")
    prompt_field: Name = setting("prompt", "Field with the prompt: a string, or a list of chat messages.")
    completion_field: Name = setting("completion", "Field with the answer: a string, or a list of messages.")
    messages_field: Name = setting("messages", "Field with a whole conversation, used where a row has it.")

    # The splits.
    split_group_field: str = setting("", "Rows with an equal value here share a split; empty groups by prompt.")
    split_time_field: str = setting("", "Split by time instead: the newest rows by this field are held out.")
    validation_share: Annotated[float, Field(ge=0, lt=1)] = setting(
        0.05, "Share of the rows held out for validation when no such input is given."
    )
    test_share: Annotated[float, Field(ge=0, lt=1)] = setting(
        0.05, "Share of the rows held out for testing when no such input is given."
    )

    # The length of a row.
    max_length: Annotated[int, Field(ge=2, le=131_072)] = setting(
        512, "Longest row, prompt and answer together.", unit="tokens"
    )
    on_long: Literal["truncate", "skip", "error"] = setting(
        "truncate", "What happens to a row longer than max_length: cut its end, leave it out, or stop."
    )

    # What trains.
    lora_rank: Annotated[int, Field(ge=1, le=1024)] = setting(8, "Rank of the LoRA matrices.")
    lora_alpha: Annotated[float, Field(gt=0, le=4096)] = setting(
        16.0, "LoRA's update is scaled by lora_alpha / lora_rank."
    )
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = setting(0.0, "Dropout before the LoRA matrices.")
    lora_targets: Targets | Literal["all-linear"] = setting(
        "all-linear", "Modules that get LoRA: a list of name endings such as q_proj, or all-linear."
    )
    keep_layers: Annotated[int, Field(ge=0, le=10_000)] = setting(
        0, "Keep only the first blocks of the base model, to try the mechanics quickly; 0 keeps all.",
        unit="blocks",
    )  # fmt: skip

    # What is handed over and shown.
    export_dtype: Literal["bf16", "fp16", "fp32"] = setting(
        "bf16", "Precision of exported weights, and of the base model when the artifact answers."
    )
    held_out_predictions: Annotated[int, Field(ge=0, le=1_000_000)] = setting(
        8, "Held-out rows predicted at the end and kept as JSONL.", unit="rows"
    )
    control_prompts: Annotated[int, Field(ge=1, le=1_000)] = setting(
        4, "Prompts answered before training, after it, and again by the reloaded artifact.", unit="prompts"
    )
    max_new_tokens: Annotated[int, Field(ge=1, le=8_192)] = setting(
        48, "Longest answer that is generated.", unit="tokens"
    )
    repetition_penalty: Annotated[float, Field(ge=1, le=10)] = setting(
        1.2, "Greedy answers of small models repeat themselves; above 1 this discourages it."
    )

    def own_contradictions(self) -> Sequence[Problem]:
        """Two ways to split at once, nothing left to train on, and LoRA where it would do nothing."""
        problems = []
        if self.split_group_field and self.split_time_field:
            found = (
                f"split_group_field {self.split_group_field!r} and split_time_field {self.split_time_field!r}"
            )
            problems.append(
                Problem("/split_time_field", found, "one of the two, since each decides the splits")
            )
        if self.validation_share + self.test_share >= 1:
            found = f"validation_share {self.validation_share} + test_share {self.test_share}"
            problems.append(
                Problem("/test_share", found, "less than 1 together, so that rows are left to train on")
            )
        if ignored := [name for name in self.lora_targets if name in UNADAPTABLE]:
            expected = "linear layers inside the blocks, such as q_proj"
            problems.append(Problem("/lora_targets", ", ".join(ignored), expected))
        return problems
