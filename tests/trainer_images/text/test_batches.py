"""Rows are laid end to end; the largest batch is full and trained."""

from __future__ import annotations

import numpy

from trainer_images.text import batches
from trainer_images.text.tokens import TokenRow


def test_collate_lays_rows_end_to_end():
    """Positions restart in each row, targets are the trained tokens, and nothing after the last is read."""
    first = TokenRow(numpy.array([5, 6, 7, 8], numpy.int32), numpy.array([False, False, True, False]))
    second = TokenRow(numpy.array([1, 2, 3], numpy.int32), numpy.array([False, True, True]))
    batch = batches.collate([first, second])

    assert batch.tensors["input_ids"].tolist() == [[5, 6, 1, 2]]
    assert batch.tensors["position_ids"].tolist() == [[0, 1, 0, 1]]
    assert (batch.tensors["positions"].tolist(), batch.tensors["targets"].tolist()) == ([1, 2, 3], [7, 2, 3])
    assert (batch.host["lengths"], batch.units) == ([2, 2], 3)


def test_the_largest_batch_is_full_and_trained(make_run):
    """Every row has max_length tokens, of which only the first is not trained."""
    batch = batches.largest_batch(make_run(max_length=16), 3)

    assert (batch.host["lengths"], batch.units) == ([15, 15, 15], 45)
