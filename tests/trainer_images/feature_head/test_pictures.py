"""Which files are labelled pictures."""

from __future__ import annotations

import pytest

from app_trainer_sdk.errors import BadData, BadJob, InputMissing
from trainer_images.feature_head.pictures import read_pictures


def test_a_class_is_a_folder_with_pictures(make_run, draw, tmp_path):
    """Empty and hidden folders are no classes; other files are counted; folders below a class belong to it."""
    root = draw(tmp_path / "data", {"cat": 2, "dog/deep": 1, ".cache": 1})
    for name in ("empty", "notes"):
        (root / name).mkdir()
    (root / "notes" / "read.txt").write_text("no picture")
    (root / "cat" / ".hidden.png").write_bytes(b"")
    (root / "loose.png").write_bytes(b"")
    found = read_pictures(make_run(root), "dataset")

    assert [(row.label, row.place) for row in found.splits["train"]] == [
        ("cat", "cat/000.png"),
        ("cat", "cat/001.png"),
        ("dog", "dog/deep/000.png"),
    ]
    assert found.ignored == {"outside a class folder": 1, "not a picture by its name": 1, "empty folder": 2}


def test_a_folder_of_splits_is_understood(make_run, draw, tmp_path):
    """train, validation and test with class folders are the splits; another folder beside them is told."""
    root = tmp_path / "data"
    draw(root / "train", {"cat": 2, "dog": 2})
    draw(root / "validation", {"cat": 1})
    splits = read_pictures(make_run(root), "dataset").splits

    assert {name: len(rows) for name, rows in splits.items()} == {"train": 4, "validation": 1}
    draw(root / "val", {"cat": 1})
    with pytest.raises(BadData, match=r"the folder 'val' beside 'train'.*train, validation, test"):
        read_pictures(make_run(root), "dataset")


def test_a_class_may_be_called_train(make_run, draw, tmp_path):
    """A folder train that holds pictures and no folders is a class like any other."""
    root = draw(tmp_path / "data", {"train": 2, "tram": 1})

    assert {"train", "tram"} == {row.label for row in read_pictures(make_run(root), "dataset").splits["train"]}


def test_no_picture_and_no_folder_are_told(make_run, draw, tmp_path):
    """What was found and what is expected."""
    (tmp_path / "data" / "empty").mkdir(parents=True)

    with pytest.raises(BadData, match=r"no picture in data: {'empty folder': 1}.*class folders"):
        read_pictures(make_run(tmp_path / "data"), "dataset")
    with pytest.raises(InputMissing, match=r"a folder of class folders"):
        read_pictures(make_run([]), "dataset")


def test_equal_files_are_one_group(make_run, draw, tmp_path):
    """A copy under another name has the digest of the first, and a changed file another one."""
    root = draw(tmp_path / "data", {"cat": 2})
    (root / "cat" / "copy.png").write_bytes((root / "cat" / "000.png").read_bytes())
    run = make_run(root)
    first, second, copy = read_pictures(run, "dataset").splits["train"]

    assert first.group == copy.group != second.group
    (root / "cat" / "copy.png").write_bytes(b"changed")
    assert read_pictures(run, "dataset").splits["train"][2].digest != first.digest


@pytest.mark.parametrize("setting", ["split_group_field", "dataset_file"])
def test_a_setting_for_texts_is_refused(make_run, draw, tmp_path, setting):
    """Pictures have no fields: the wish is not passed over."""
    run = make_run(draw(tmp_path / "data", {"cat": 1}), **{setting: "author"})

    with pytest.raises(BadJob, match=rf"{setting} 'author' for pictures.*/hyperparameters/{setting}"):
        read_pictures(run, "dataset")


@pytest.mark.parametrize("linked", ["cat/out.png", "dog"])
def test_a_link_out_of_the_input_is_refused(make_run, draw, tmp_path, linked):
    """A picture or a class folder elsewhere is no part of the input; a link inside it is."""
    root, elsewhere = draw(tmp_path / "data", {"cat": 1}), draw(tmp_path / "elsewhere", {"dog": 1})
    (root / "cat" / "inside.png").symlink_to(root / "cat" / "000.png")
    inside = read_pictures(make_run(root), "dataset").splits["train"]
    (root / linked).symlink_to(elsewhere / "dog" / ("000.png" if "." in linked else ""))

    assert [row.place for row in inside] == ["cat/000.png", "cat/inside.png"]
    with pytest.raises(BadJob, match=rf"'{linked}.*' leads outside the input; expected a picture inside"):
        read_pictures(make_run(root), "dataset")


def test_a_name_that_no_document_can_hold_is_told(make_run, draw, tmp_path):
    """The class map and predictions are UTF-8; a folder's name need not be."""
    root = draw(tmp_path / "data", {"cat": 1})
    (root / "cat").rename(root / "caf\udce9")

    with pytest.raises(BadData, match=r"the name 'caf\\udce9/000.png' is no UTF-8; expected names in UTF-8"):
        read_pictures(make_run(root), "dataset")
