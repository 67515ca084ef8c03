"""Owns which files of a folder are labelled pictures: a class is a folder with pictures in it.

It opens no picture and must not know splits by share, texts or torch.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from app_trainer_sdk.errors import BadData, BadJob, InputMissing
from app_trainer_sdk.handle import Run
from trainer_images.feature_head.rows import HELD_OUT, SPLITS, Found, Row, file_digest

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"})


def read_pictures(run: Run, name: str) -> Found:
    """The pictures of the input ``name``: class folders, or ``train``, ``validation`` and ``test`` with such.

    Hidden files and folders are passed over; other files and empty folders are counted and are no classes.

    Raises:
        BadData: there is no picture, or a folder beside ``train`` that is no split.
        BadJob: a setting is for texts only.
        InputMissing: there is no such folder, or a file cannot be read.
    """
    _refuse_fields(run)
    root = run.inputs.get(name)
    if root is None or not root.is_dir():
        raise InputMissing(
            f"input {name!r} is {root or 'not given'}",
            expected="a folder of class folders",
            setting=f"/inputs/{name}",
        )
    ignored: Counter[str] = Counter()
    splits: dict[str, list[Row]] = {}
    for split, folder in _split_folders(root, name).items():
        found = list(_class_files(folder, ignored))
        splits[split] = [
            _row(path, label, root, name) for path, label in run.track(found, f"read {split} of {name}")
        ]
    if not any(splits.values()):
        raise BadData(
            f"no picture in {root.name}: {dict(ignored) or 'it is empty'}",
            expected=f"class folders with files that end in {', '.join(sorted(SUFFIXES))}",
            setting=f"/inputs/{name}",
        )
    return Found(splits, dict(ignored))


def _refuse_fields(run: Run) -> None:
    """A wish that only rows of text can fulfil would be passed over without a word."""
    for setting in ("dataset_file", "split_group_field"):
        if asked := getattr(run.settings, setting):
            raise BadJob(
                f"{setting} {asked!r} for pictures, which have no fields", expected="nothing",
                setting=f"/hyperparameters/{setting}",
            )  # fmt: skip


def _split_folders(root: Path, name: str) -> dict[str, Path]:
    """Folders by split. A folder ``train`` that holds pictures and no folders is a class like any other."""
    if name in HELD_OUT or not (root / "train").is_dir() or not any(_folders(root / "train")):
        return {"train": root}
    for folder in _folders(root):
        if folder.name not in SPLITS:
            raise BadData(
                f"the folder {folder.name!r} beside 'train'", expected=f"one of {', '.join(SPLITS)}",
                setting=f"/inputs/{name}",
            )  # fmt: skip
    return {split: root / split for split in SPLITS if (root / split).is_dir()}


def _class_files(folder: Path, ignored: Counter[str]) -> Iterator[tuple[Path, str]]:
    """Each picture below a class folder with the class, in the order of names."""
    for each in sorted(folder.iterdir()):
        if each.is_file() and not each.name.startswith("."):
            ignored["outside a class folder"] += 1
    for each in _folders(folder):
        files = [path for path in _files_below(each) if not path.name.startswith(".")]
        pictures = [path for path in files if path.suffix.lower() in SUFFIXES]
        ignored["not a picture by its name"] += len(files) - len(pictures)
        ignored["empty folder"] += not pictures
        yield from ((path, each.name) for path in pictures)
    for reason in [reason for reason, count in ignored.items() if not count]:
        del ignored[reason]


def _folders(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _files_below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        yield from (Path(place) / each for each in sorted(files))


def _row(path: Path, label: str, root: Path, name: str) -> Row:
    place = path.relative_to(root).as_posix()
    _check_place(path, place, root, f"/inputs/{name}")
    try:
        digest = file_digest(path)
    except OSError as error:
        raise InputMissing(
            f"{place} cannot be read: {error.strerror}", expected="a readable file", setting=f"/inputs/{name}"
        ) from None
    return Row(place, label, path, digest, digest)


def _check_place(path: Path, place: str, root: Path, setting: str) -> None:
    """A picture lies inside the input, and its name and its class's can stand in a document."""
    if any("\ud800" <= each <= "\udfff" for each in place):
        raise BadData(f"the name {place!a} is no UTF-8", expected="names in UTF-8", setting=setting)
    linked = any((root / each).is_symlink() for each in (Path(place), *Path(place).parents[:-1]))
    if linked and not path.resolve().is_relative_to(root.resolve()):
        raise BadJob(f"{place!r} leads outside the input", expected=f"a picture inside {root}", setting=setting)
