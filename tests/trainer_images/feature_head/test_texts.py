"""Labelled texts from JSONL."""

from __future__ import annotations

import pytest

from app_trainer_sdk.errors import BadData, BadJob
from trainer_images.feature_head.texts import read_texts


def test_rows_come_in_file_order_with_their_place(make_run):
    """A class may be a string or a whole number; blank lines are passed over."""
    run = make_run(['{"text": "a", "label": "x"}', "", '{"text": "b", "label": 3}'])
    rows = read_texts(run, "dataset").splits["train"]

    assert [(row.place, row.label, row.content) for row in rows] == [
        ("dataset.jsonl:1", "x", "a"),
        ("dataset.jsonl:3", "3", "b"),
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"text": "a"', "invalid JSON"),
        ("[1]", "a list"),
        ('{"label": "x"}', "no field 'text' among 'label'.*/hyperparameters/text_field"),
        ('{"text": "a"}', "no field 'label' among 'text'.*/hyperparameters/label_field"),
        ('{"text": " ", "label": "x"}', "field 'text' is empty"),
        ('{"text": 4, "label": "x"}', "field 'text' is a number"),
        ('{"text": "\\ud83d", "label": "x"}', "half a character"),
        ('{"text": "a", "label": true}', "field 'label' is True"),
        ('{"text": "a", "label": 1.5}', "field 'label' is 1.5"),
        ('{"text": "a", "label": ""}', "field 'label' is ''"),
    ],
)
def test_a_wrong_line_names_file_line_and_field(make_run, line, told):
    """What was found, and where."""
    run = make_run(['{"text": "a", "label": "x"}', line])

    with pytest.raises(BadData, match=rf"dataset.jsonl:2: .*{told}"):
        read_texts(run, "dataset")


def test_an_empty_file_is_told(make_run):
    """No row, and which input."""
    with pytest.raises(BadData, match=r"no row.*/inputs/dataset"):
        read_texts(make_run([]), "dataset")


def test_a_folder_needs_one_file_or_a_name(make_run, tmp_path):
    """Two candidates are told; the setting chooses."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.jsonl").write_text(f'{{"text": "{name}", "label": "x"}}\n')
    run = make_run([], inputs={"validation": folder})

    with pytest.raises(BadJob, match=r"2 .jsonl files: a.jsonl, b.jsonl.*dataset_file"):
        read_texts(run, "validation")
    chosen = make_run([], inputs={"validation": folder}, dataset_file="b.jsonl")
    assert read_texts(chosen, "validation").splits["train"][0].content == "b"
