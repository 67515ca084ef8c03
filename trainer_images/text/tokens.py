"""Owns the phase ``tokens``: rows become flat arrays of ids on disk, and the dataset that reads them back.

Length is judged here, before any weight is loaded: how many rows were cut, and how many have nothing left
to train on. It must not know models or losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from app_trainer_sdk.errors import BadData
from app_trainer_sdk.handle import Run
from app_trainer_sdk.training.randomness import Random
from app_trainer_sdk.values import JSON, Phase
from trainer_images.text.examination import fingerprint
from trainer_images.text.prompts import segments, token_ids
from trainer_images.text.rows import Row
from trainer_images.text.splits import SPLITS, Splits, split_rows
from trainer_images.text.weights import load_tokenizer, tokenizer_digest, weights_folder

FILE = "tokens.safetensors"


class TokenRow(NamedTuple):
    """One row: its ids (int32) and which of them are trained (bool), both of shape (tokens,)."""

    ids: NDArray[numpy.int32]
    trained: NDArray[numpy.bool_]


@dataclass
class Counts:
    """What tokenizing one split told. Tokens are those kept, after cutting."""

    rows: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    longest: int = 0
    cut: int = 0
    skipped: int = 0
    masked: int = 0


class TokenDataset:
    """The rows of one split, read from flat arrays.

    Args:
        ids: all ids of the split, one row after another.
        trained: for each id whether it is trained.
        offsets: where rows begin, one more than there are rows.
    """

    def __init__(
        self, ids: NDArray[numpy.int32], trained: NDArray[numpy.bool_], offsets: NDArray[numpy.int64]
    ) -> None:
        self.ids, self.trained, self.offsets = ids, trained, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def item(self, index: int, random: Random | None = None) -> TokenRow:
        """Row ``index``; nothing about it is random."""
        part = slice(self.offsets[index], self.offsets[index + 1])
        return TokenRow(self.ids[part], self.trained[part])

    def lengths(self) -> NDArray[numpy.int64]:
        """Tokens of each row."""
        return numpy.diff(self.offsets)


def phases(run: Run) -> Sequence[Phase]:
    """The tokenizing; its result is shared by jobs with equal rows, lengths and weights."""
    settings = run.settings
    names = ("max_length", "on_long")
    key = {name: getattr(settings, name) for name in names}
    key |= {"rows": fingerprint(split_rows(run)), "tokenizer": tokenizer_digest(run)}
    return (Phase("tokens", write_tokens, key, uses=("inputs",)),)


def write_tokens(run: Run, directory: Path) -> Mapping[str, JSON]:
    """Tokenize every split into one file.

    Returns:
        for each split the counts of :class:`Counts`, and the share of training rows with nothing to train on.

    Raises:
        BadData: a row is too long and the settings say to stop, or no training row has anything to train on.
    """
    tokenizer = load_tokenizer(weights_folder(run), run.allow)
    splits: Splits = split_rows(run)
    arrays: dict[str, NDArray[Any]] = {}
    counts: dict[str, Counts] = {}
    for name in SPLITS:
        counts[name] = Counts()
        tokenized = (
            tokenize(tokenizer, row, run.settings, counts[name])
            for row in run.track(splits[name], f"tokenize {name}")
        )
        arrays |= {f"{name}.{part}": array for part, array in _flat(tokenized).items()}
    _refuse_nothing_trained(counts["train"], run)
    save_file(arrays, directory / FILE)
    share = (counts["train"].masked + counts["train"].skipped) / counts["train"].rows
    return {**{name: asdict(each) for name, each in counts.items()}, "untrained_share": share}


def tokenize(tokenizer: Any, row: Row, settings: Any, counts: Counts) -> TokenRow:
    """Ids of a row, cut to ``max_length``; a row with nothing left to train on comes back empty.

    Empty rows keep their place, so that the number of rows is known before tokenizing. They cost nothing and
    add nothing to a gradient.
    """
    ids: list[int] = []
    trained: list[bool] = []
    for index, segment in enumerate(segments(tokenizer, row)):
        piece = token_ids(tokenizer, segment.text, first=index == 0)
        ids += piece
        trained += [segment.trained] * len(piece)
    kept = _kept_length(len(ids), row, settings, counts)
    # The first token of a row has nothing before it that could predict it.
    flags = numpy.array([False, *trained[1:kept]][:kept], dtype=bool)
    if kept and not flags.any():
        counts.masked += 1
        kept = 0
    counts.rows += 1
    counts.tokens += kept
    counts.trained_tokens += int(flags[:kept].sum())
    counts.longest = max(counts.longest, kept)
    return TokenRow(numpy.array(ids[:kept], dtype=numpy.int32), flags[:kept])


def read_tokens(run: Run, split: str) -> TokenDataset:
    """The dataset of one split from the finished phase; without rows when there is no such split."""
    arrays = load_file(run.store["tokens"] / FILE)
    if f"{split}.ids" not in arrays:
        return TokenDataset(numpy.zeros(0, numpy.int32), numpy.zeros(0, bool), numpy.zeros(1, numpy.int64))
    return TokenDataset(*(arrays[f"{split}.{part}"] for part in ("ids", "trained", "offsets")))


def _kept_length(length: int, row: Row, settings: Any, counts: Counts) -> int:
    if length <= settings.max_length:
        return length
    if settings.on_long == "error":
        raise BadData(
            f"{row.place}: {length} tokens",
            expected=f"at most {settings.max_length}, since on_long is 'error'",
            setting="/hyperparameters/max_length",
        )
    if settings.on_long == "skip":
        counts.skipped += 1
        return 0
    counts.cut += 1
    return int(settings.max_length)


def _refuse_nothing_trained(counts: Counts, run: Run) -> None:
    if counts.masked + counts.skipped == counts.rows:
        raise BadData(
            f"all {counts.rows} training rows lose every trained token: max_length is "
            f"{run.settings.max_length} and on_long is {run.settings.on_long!r}",
            expected="a max_length that holds the prompt and at least one token of the answer",
            setting="/hyperparameters/max_length",
        )


def _flat(rows: Iterable[TokenRow]) -> dict[str, NDArray[Any]]:
    read = list(rows)
    lengths = [0, *(len(row.ids) for row in read)]
    return {
        "ids": numpy.concatenate([numpy.zeros(0, numpy.int32), *(row.ids for row in read)]),
        "trained": numpy.concatenate([numpy.zeros(0, bool), *(row.trained for row in read)]),
        "offsets": numpy.cumsum(lengths, dtype=numpy.int64),
    }
