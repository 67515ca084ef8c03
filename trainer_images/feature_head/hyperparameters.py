"""Owns the settings the ``feature_head`` image adds: the rows, the splits, the extraction and the head.

It must not import torch, and derives no number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field, StringConstraints

from app_trainer_sdk.errors import Problem
from app_trainer_sdk.hyperparameters import Hyperparameters, setting

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class FeatureHeadHyperparameters(Hyperparameters):
    """What a user may choose about a head on frozen features."""

    # The rows. Pictures need no fields: their class is the folder they are in.
    dataset_file: str = setting("", "File inside an input that is a folder; empty takes its only .jsonl file.")
    text_field: Name = setting("text", "Field with the text of a row.")
    label_field: Name = setting("label", "Field with the class of a row: a string or a whole number.")
    on_corrupt: Literal["error", "skip"] = setting(
        "error",
        "What happens to a picture that cannot be decoded: stop and name it, or leave it out and count it.",
    )

    # The splits.
    split_group_field: str = setting(
        "", "Text rows with an equal value here share a split; empty groups by text."
    )
    validation_share: Annotated[float, Field(ge=0, lt=1)] = setting(
        0.1, "Share of each class held out for validation when the data has no such split."
    )
    test_share: Annotated[float, Field(ge=0, lt=1)] = setting(
        0.1, "Share of each class held out for testing when the data has no such split."
    )

    # The extraction.
    extraction_batch: Annotated[int, Field(ge=1, le=4096)] = setting(
        32, "Rows that the frozen backbone sees at once.", unit="rows"
    )
    max_length: Annotated[int, Field(ge=2, le=512)] = setting(
        256, "Longest text; what is longer is cut at its end.", unit="tokens"
    )

    # The head.
    hidden_width: Annotated[int, Field(ge=0, le=65_536)] = setting(
        0, "Width of the head's hidden layer; 0 makes the head one linear layer.", unit="features"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = setting(0.1, "Dropout on the features that the head reads.")

    # What is shown.
    control_rows: Annotated[int, Field(ge=1, le=1_000)] = setting(
        8, "Rows classified at the end, and again by the reloaded artifact.", unit="rows"
    )

    auto_epochs: ClassVar[int] = 30
    auto_microbatch: ClassVar[int] = 32

    def own_contradictions(self) -> Sequence[Problem]:
        """Nothing left to train on."""
        if self.validation_share + self.test_share < 1:
            return []
        found = f"validation_share {self.validation_share} + test_share {self.test_share}"
        return [Problem("/test_share", found, "less than 1 together, so that rows are left to train on")]
