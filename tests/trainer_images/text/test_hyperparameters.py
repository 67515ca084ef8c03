"""Settings of the text image."""

from __future__ import annotations

import pytest

from app_trainer_sdk.errors import BadJob
from trainer_images.text.hyperparameters import TextHyperparameters


@pytest.mark.parametrize(
    ("values", "pointer"),
    [
        ({"split_group_field": "a", "split_time_field": "b"}, "/hyperparameters/split_time_field"),
        ({"validation_share": 0.5, "test_share": 0.5}, "/hyperparameters/test_share"),
        ({"lora_targets": ["q_proj", "lm_head"]}, "/hyperparameters/lora_targets"),
        ({"lora_targets": []}, "/hyperparameters/lora_targets"),
        ({"max_length": 1}, "/hyperparameters/max_length"),
        ({"on_long": "drop"}, "/hyperparameters/on_long"),
    ],
)
def test_what_cannot_be_is_refused_with_its_pointer(values, pointer):
    """A contradiction or a value out of bounds names the setting to change."""
    with pytest.raises(BadJob) as caught:
        TextHyperparameters.read(values)

    assert pointer in [problem.pointer for problem in caught.value.problems]


def test_targets_come_as_json_lists():
    """A list of module names, as JSON has it, is taken."""
    assert TextHyperparameters.read({"lora_targets": ["q_proj", "v_proj"]}).lora_targets == ("q_proj", "v_proj")
