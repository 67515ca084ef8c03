"""Owns the phase ``features``: every content once through the frozen backbone, into the SDK's feature store.

An item of the store is a shard: some batches of contents in a fixed order. So a shard has the same bits
whether the extraction ran in one go or was killed and went on, and files stay few. Memory is bounded by one
shard of features and one batch of anything else. This file must not know heads; the dataset joins stored
features with classes when training reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from app_trainer_sdk.errors import BadData
from app_trainer_sdk.handle import Run
from app_trainer_sdk.training.feature_store import Features, FeatureStore
from app_trainer_sdk.values import JSON, Phase
from trainer_images.feature_head.backbone import Extractor, load_extractor, preprocessing
from trainer_images.feature_head.examination import contents, contents_digest
from trainer_images.feature_head.rows import Row
from trainer_images.feature_head.splits import class_names, read_splits
from trainer_images.feature_head.weights import backbone_digest

#: Batches in a shard: what a killed extraction may have to do again.
SHARD_BATCHES = 16
#: Raise it when the same backbone would give other features, as after a change of its code or conversion.
EXTRACTION_VERSION = 1
#: Files named in the facts; the rest are counted.
NAMED = 20


def phases(run: Run) -> Sequence[Phase]:
    """The extraction. Classes, splits and seed move no feature, so jobs that differ in them share it."""
    found = contents_digest(contents(read_splits(run)[0]))
    key = {"contents": found, "backbone": backbone_digest(run), **_identity(run)}
    return (Phase("features", extract, key, uses=()),)


def extract(run: Run, directory: Path) -> Mapping[str, JSON]:
    """Ask the backbone about every different content and store the answers in fp32.

    Returns:
        how many contents there are, what was computed and reused in shards, and which files were skipped.

    Raises:
        BadData: a picture cannot be decoded and the settings say to stop, or none can.
    """
    rows = list(contents(read_splits(run)[0]).values())
    identity = _identity(run)
    # Not before it is asked for: all shards may be there already.
    extractor = cache(lambda: load_extractor(run))
    store = FeatureStore(run, run.model.name, extractor=backbone_digest(run), preprocessing=identity)
    shards = _shards(rows, SHARD_BATCHES * run.settings.extraction_batch)
    counts = store.fill(directory, shards, lambda some: [_answer(run, extractor(), each) for each in some])
    here = dataclasses.replace(run, store={"features": directory})
    usable = torch.cat([shard["usable"] for shard in _read(here)]).tolist()
    skipped = [row.place for row, good in zip(rows, usable, strict=True) if not good]
    if len(skipped) == len(rows):
        raise BadData(f"not one of {len(rows)} pictures can be decoded", expected="pictures", setting="/inputs")
    return {
        "contents": len(rows), "features": run.model.architecture["features"], "dtype": "float32",
        "computed_in": str(run.dtype), "skipped": len(skipped), "skipped_files": skipped[:NAMED],
        "shards": counts,
    }  # fmt: skip


class FeatureRow(NamedTuple):
    """One row: its features (width,) fp32, the number of its class, and whether it has any features."""

    features: Tensor
    label: int
    usable: bool


class FeatureDataset:
    """The rows of one split over stored features.

    Args:
        shards: ``features`` (contents, width) and ``usable`` (contents,) of each; only the last may be shorter.
        places: for each row the number of its content.
        labels: for each row the number of its class.
    """

    def __init__(
        self, shards: Sequence[Mapping[str, Tensor]], places: Sequence[int], labels: Sequence[int]
    ) -> None:
        self.shards, self.places, self.labels = shards, places, labels
        self._size = len(shards[0]["usable"])

    def __len__(self) -> int:
        return len(self.places)

    def item(self, index: int, random: object = None) -> FeatureRow:
        """Row ``index``; nothing about it is random. Rows without features keep their place."""
        number, place = divmod(self.places[index], self._size)
        shard = self.shards[number]
        return FeatureRow(shard["features"][place], self.labels[index], bool(shard["usable"][place]))


def read_features(run: Run, split: str) -> FeatureDataset:
    """The dataset of one split from the finished phase; without rows when there is no such split.

    Raises:
        BadData: a class has no training row with features.
    """
    splits, _ = read_splits(run)
    names = class_names(splits)
    number = {name: index for index, name in enumerate(names)}
    place = {digest: index for index, digest in enumerate(contents(splits))}
    rows = splits.get(split, ())
    labels = [number[row.label] for row in rows]
    dataset = FeatureDataset(_read(run), [place[row.digest] for row in rows], labels)
    if split == "train":
        _refuse_empty_classes(dataset, names)
    return dataset


def _identity(run: Run) -> dict[str, JSON]:
    """What moves a feature besides backbone and content."""
    return {
        "preprocessing": preprocessing(run),
        "precision": str(run.dtype),
        "batch": run.settings.extraction_batch,  # padding moves the last bit
        "on_corrupt": run.settings.on_corrupt,
        "version": EXTRACTION_VERSION,
    }


def _shards(rows: Sequence[Row], size: int) -> list[tuple[str, Sequence[Row]]]:
    """Pieces of the rows, each under a digest of its contents in their order."""
    pieces = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [(contents_digest(row.digest for row in piece), piece) for piece in pieces]


def _answer(run: Run, extractor: Extractor, rows: Sequence[Row]) -> Mapping[str, Tensor]:
    """Features of one shard, batch by batch; a stop is heard before each."""
    size, values, usable = run.settings.extraction_batch, [], []
    for start in run.track(range(0, len(rows), size), "extract a shard"):
        batch = rows[start : start + size]
        found, problems = extractor([row.content for row in batch])
        if run.settings.on_corrupt == "error":
            _refuse_corrupt(batch, problems)
        values.append(found)
        usable += [not problem for problem in problems]
    return {"features": torch.cat(values), "usable": torch.tensor(usable)}


def _refuse_corrupt(rows: Sequence[Row], problems: Sequence[str]) -> None:
    for row, problem in zip(rows, problems, strict=True):
        if problem:
            raise BadData(
                f"{row.place} cannot be decoded: {problem}",
                expected="a whole picture, or on_corrupt 'skip' to leave such files out",
                setting=f"{row.place}, or /hyperparameters/on_corrupt",
            )


def _read(run: Run) -> list[Mapping[str, Tensor]]:
    """All shards, mapped from disk and not copied into memory."""
    stored = Features(run, "features")
    return [stored[number] for number in range(len(stored))]


def _refuse_empty_classes(dataset: FeatureDataset, names: Sequence[str]) -> None:
    rows = map(dataset.item, range(len(dataset)))
    trained = {row.label for row in rows if row.usable}
    missing = [name for index, name in enumerate(names) if index not in trained]
    if missing:
        raise BadData(
            f"no training picture of the class {missing[0]!r} can be decoded",
            expected="at least one of each class", setting="/inputs/dataset",
        )  # fmt: skip
