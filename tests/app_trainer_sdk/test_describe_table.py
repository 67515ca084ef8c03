"""The table for people."""

from __future__ import annotations

import pytest
from offered import DOCUMENT, Toy

from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.describe import describe_document
from app_trainer_sdk.describe_table import render_table


def _facts_of(trainer: type) -> dict:
    return {name: value for name, value in vars(trainer).items() if name != "__dict__" and name[:2] != "_a"}


def test_the_table_is_aligned():
    """One line for each method and for inference; the floor with its grade, and the defaults of note."""
    lines = render_table(DOCUMENT).splitlines()
    heading, _, lora, full, inference, other, *_ = lines

    assert len(lines) == 2 + 2 * 3
    assert lora.split()[:8] == ["toy", "tiny-1m", "1.2", "M", "lora", "1.5", "GiB", "measured"]
    assert lora.endswith("learning_rate 0.0003, weight_decay 0.1")
    assert full.split() == ["full", "2.2", "GiB", "declared", "learning_rate", "0.001"]
    assert inference.split() == ["inference", "unknown", "none"]
    assert other.split()[:5] == ["nameless", "999", "lora", "unknown", "none"]
    assert len({line.index(word) for line, word in ((heading, "method"), (lora, "lora"), (full, "full"))}) == 1


def test_the_table_of_nothing():
    """Said in words."""
    assert render_table(describe_document([])) == "No trainer is installed.\n"


@pytest.mark.parametrize(
    ("parameters", "shown"), [(7, "7"), (1_000, "1.0 k"), (134_515_008, "134.5 M"), (7 * 10**9, "7.0 B")]
)
def test_parameters_are_counted_as_people_say_them(parameters: int, shown: str):
    """Three digits or so."""
    row = ModelRow("a", "A", parameters)
    trainer = type("Other", (SupervisedTrainer,), {**_facts_of(Toy), "models": (row,)})

    assert f" {shown}  lora" in render_table(describe_document([trainer]))
