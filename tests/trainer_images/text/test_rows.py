"""Reading JSONL: rows, and errors that say where."""

from __future__ import annotations

import pytest

from app_trainer_sdk.errors import BadData, BadJob, InputMissing
from trainer_images.text.rows import read_rows

GOOD = {"prompt": "Define: Zeal", "completion": "A nervous disorder."}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a", ', ["dataset.jsonl:2", "invalid JSON", "column"]),
        ("[1, 2]", ["dataset.jsonl:2", "a list"]),
        ({"completion": "x"}, ["dataset.jsonl:2", "'prompt'", "/hyperparameters/prompt_field"]),
        ({"prompt": "x"}, ["dataset.jsonl:2", "'completion'", "/hyperparameters/completion_field"]),
        ({"prompt": "x", "completion": 7}, ["dataset.jsonl:2", "'completion'", "a number"]),
        ({"prompt": None, "completion": "x"}, ["dataset.jsonl:2", "'prompt'", "null"]),
        ({"prompt": "x", "completion": "  "}, ["dataset.jsonl:2", "'completion'", "no answer"]),
        ({"prompt": "x", "completion": []}, ["dataset.jsonl:2", "'completion'", "no answer"]),
        ({"messages": "hello"}, ["dataset.jsonl:2", "'messages'", "str"]),
        ({"messages": [{"role": "user", "content": "x"}]}, ["dataset.jsonl:2", "'messages'", "no answer"]),
        ({"messages": [{"role": "robot", "content": "x"}]}, ["dataset.jsonl:2", "'messages'[0]", "'robot'"]),
        ({"messages": [{"role": "user", "content": 1}]}, ["dataset.jsonl:2", "'messages'[0]", "a number"]),
        ({"messages": ["x"]}, ["dataset.jsonl:2", "'messages'[0]", "str"]),
    ],
)
def test_a_wrong_row_names_file_line_and_field(make_run, line, words):
    """The message says which line of which file, which field, and what was found."""
    with pytest.raises(BadData) as caught:
        read_rows(make_run([GOOD, line]), "dataset")

    assert [word for word in words if word not in str(caught.value)] == []


def test_conversations_train_every_answer_and_completions_only_theirs(make_run):
    """In messages each assistant turn is trained; answers inside a prompt are not."""
    talk = [
        {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"},
    ]  # fmt: skip
    rows = read_rows(make_run([{"messages": talk}, {"prompt": talk[:3], "completion": talk[3:]}]), "dataset")

    assert [row.trained for row in rows] == [[1, 3], [3]]
    assert [row.reference for row in rows] == ["d", "d"]
    assert tuple(talk[:3]) == rows[0].prompt


def test_a_folder_is_read_by_its_only_file_or_the_one_named(make_run, tmp_path):
    """Two files need dataset_file; a path that leaves the folder is refused."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')

    assert len(read_rows(make_run(data), "dataset")) == 1
    (data / "b.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 2)
    assert len(read_rows(make_run(data, dataset_file="b.jsonl"), "dataset")) == 2
    with pytest.raises(BadJob, match="dataset_file"):
        read_rows(make_run(data), "dataset")
    with pytest.raises(BadJob, match="outside"):
        read_rows(make_run(data, dataset_file="../dataset.jsonl"), "dataset")
    with pytest.raises(InputMissing):
        read_rows(make_run(data, dataset_file="c.jsonl"), "dataset")


@pytest.mark.parametrize(
    "row", ['{"prompt": "a\\ud800", "completion": "b"}', '{"prompt": "a", "completion": "\\udfff"}']
)
def test_half_a_character_names_its_line(make_run, row):
    """JSON can say one half of a surrogate pair; a whole pair is one character and fine."""
    with pytest.raises(BadData, match=r"dataset.jsonl:2: the text of the .* has half a character"):
        read_rows(make_run([GOOD, row]), "dataset")

    assert len(read_rows(make_run([GOOD, '{"prompt": "\\ud83d\\ude00", "completion": "b"}']), "dataset")) == 2
