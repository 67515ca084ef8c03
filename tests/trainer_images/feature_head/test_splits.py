"""Splits that leak nothing, and a class map that follows from training alone."""

from __future__ import annotations

import pytest
from labelled_rows import labelled

from app_trainer_sdk.errors import BadData
from trainer_images.feature_head.rows import SPLITS
from trainer_images.feature_head.splits import class_names, leaks, read_splits


def test_every_class_keeps_its_share_in_every_split(make_run):
    """Shares are taken class by class, so that a rare class is held out and trained too."""
    rows = [{"text": f"text {index}", "label": "rare" if index < 10 else "common"} for index in range(100)]
    splits, _ = read_splits(make_run(rows, validation_share=0.2, test_share=0.1))

    assert [(len(splits[name]), sum(row.label == "rare" for row in splits[name])) for name in SPLITS] == [
        (70, 7),
        (20, 2),
        (10, 1),
    ]


def test_the_last_group_of_a_class_trains(make_run):
    """A class with one row is trained, whatever the shares."""
    rows = [*labelled(30), {"text": "alone", "label": "single"}]
    splits, _ = read_splits(make_run(rows, validation_share=0.5, test_share=0.4))

    assert "single" in class_names(splits)


@pytest.mark.parametrize("field", ["", "author"])
def test_rows_of_a_group_share_a_split(make_run, field):
    """Equal texts but for case and spacing, or an equal field, are never on two sides."""
    rows = [
        {"text": ("Text  %d" if index % 2 else "text %d") % (index // 2), "label": "ab"[index // 2 % 2],
         "author": index // 4}
        for index in range(80)
    ]  # fmt: skip
    splits, _ = read_splits(make_run(rows, validation_share=0.2, test_share=0.2, split_group_field=field))
    groups = [{row.group for row in splits[name]} for name in SPLITS]

    assert all(groups)
    assert sum(map(len, groups)) == len(set().union(*groups))


def test_splits_follow_from_rows_and_seed(make_run):
    """Equal seeds give equal splits, other seeds others; the order of lines moves no row."""

    def held_out(lines, seed):
        return {row.content for row in read_splits(make_run(lines, seed=seed))[0]["test"]}

    assert held_out(labelled(60), 1) == held_out(labelled(60)[::-1], 1)
    assert held_out(labelled(60), 1) != held_out(labelled(60), 2)


def test_the_class_map_is_that_of_training(make_run):
    """Names in order; a held-out class that is not trained names the row, the split and what is known."""
    other = [{"text": "new", "label": "red"}, {"text": "newer", "label": "pink"}]
    run = make_run(labelled(12), inputs={"test": other})

    with pytest.raises(
        BadData, match=r"test.jsonl:2: the class 'pink', in test and not in train .1 such rows.*blue"
    ):
        read_splits(run)
    splits, _ = read_splits(make_run(labelled(12), inputs={"test": other[:1]}))
    assert class_names(splits) == ("blue", "green", "red")


def test_one_class_is_no_classification(make_run):
    """Told before anything is computed."""
    with pytest.raises(BadData, match=r"one class, red; expected at least two"):
        read_splits(make_run([{"text": str(index), "label": "red"} for index in range(4)]))


def test_given_splits_are_used_and_what_they_leak_is_counted(make_run):
    """A given validation file leaves the dataset its other shares; rows that training knows are told."""
    other = [labelled(1)[0], {"text": "new", "label": "blue"}]
    splits, _ = read_splits(make_run(labelled(30), inputs={"validation": other}, test_share=0))

    assert [len(splits[name]) for name in SPLITS] == [30, 2, 0]
    assert leaks(splits)["validation"] == {"rows": 2, "same_group": 1}


def test_pictures_use_the_folders_of_splits(make_run, draw, tmp_path):
    """A dataset with a validation folder has no share taken for it."""
    draw(tmp_path / "data/train", {"a": 10, "b": 10})
    draw(tmp_path / "data/validation", {"a": 2, "b": 1}, size=33)
    splits, _ = read_splits(make_run(tmp_path / "data"))

    assert [len(splits[name]) for name in SPLITS] == [18, 3, 2]
