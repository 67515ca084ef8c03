"""Owns the making of a batch: rows laid end to end, with the places and targets the loss needs.

All counting happens here, on the host. It must not know models or files.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy
import torch

from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import JSON, Batch
from trainer_images.text.tokens import TokenRow


def collate(items: Sequence[TokenRow]) -> Batch:
    """One batch without padding.

    A row is read up to the token before its last trained one: what stands behind trains nothing. So a row
    with nothing to train on is not read at all; a batch of such rows keeps one token to compute on, and
    has no units.

    Returns:
        ``input_ids`` and ``position_ids`` (1, tokens), ``row_starts`` (rows + 1,) int32, ``positions`` of the
        hidden states that predict a trained token and these tokens as ``targets`` (units,); on the host the
        ``lengths`` of the rows. The units are trained tokens.
    """
    rows = [(row, _read_length(row)) for row in items]
    rows = [(row, length) for row, length in rows if length] or [(_NOTHING, 1)]
    lengths = [length for _, length in rows]
    starts = numpy.cumsum([0, *lengths])
    predicted = [numpy.flatnonzero(row.trained[1 : length + 1]) for row, length in rows]
    targets = [row.ids[1 : length + 1][where] for (row, length), where in zip(rows, predicted, strict=True)]
    positions = [start + where for start, where in zip(starts, predicted, strict=False)]
    return Batch(
        tensors={
            "input_ids": _long([row.ids[:length] for row, length in rows]).unsqueeze(0),
            "position_ids": _long([numpy.arange(length) for length in lengths]).unsqueeze(0),
            "row_starts": torch.from_numpy(starts.astype(numpy.int32)),
            "positions": _long(positions),
            "targets": _long(targets),
        },
        units=sum(map(len, targets)),
        host={"lengths": lengths},
    )


def largest_batch(run: Run, rows: int) -> Batch:
    """The heaviest batch the settings admit: rows of ``max_length`` tokens, all trained but the first."""
    length = run.settings.max_length
    trained = numpy.ones(length, dtype=bool)
    trained[0] = False
    return collate([TokenRow(numpy.zeros(length, dtype=numpy.int32), trained)] * rows)


def show(run: Run, batch: Batch) -> Sequence[JSON]:
    """Each row of a batch as a person reads it: the text the model sees, and the tokens it has to say."""
    from trainer_images.text.weights import load_tokenizer, weights_folder

    tokenizer = load_tokenizer(weights_folder(run), run.allow)
    starts = batch.tensors["row_starts"].tolist()
    positions, targets = batch.tensors["positions"], batch.tensors["targets"]
    shown: list[JSON] = []
    for begin, end in itertools.pairwise(starts):
        inside = (positions >= begin) & (positions < end)
        read = tokenizer.decode(batch.tensors["input_ids"][0, begin:end])
        shown.append({"read": read, "trained": tokenizer.decode(targets[inside]), "tokens": end - begin})
    return shown


_NOTHING = TokenRow(numpy.zeros(1, dtype=numpy.int32), numpy.zeros(1, dtype=bool))


def _read_length(row: TokenRow) -> int:
    """Tokens to read: those before the last trained one."""
    trained = numpy.flatnonzero(row.trained)
    return int(trained[-1]) if len(trained) else 0


def _long(parts: Sequence[numpy.ndarray]) -> torch.Tensor:
    return torch.from_numpy(numpy.concatenate(parts).astype(numpy.int64))
