"""The row of one phase: what it hands over, and its verdict in words."""

from __future__ import annotations

import pytest
import torch

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training.holders import Held
from app_trainer_sdk.training.memory import Reading
from app_trainer_sdk.training.phase_row import CONSTANTS_BYTES, Row, verdict


def held(owner="CACHE", *, size=2048, tensors=1, kind="", graphs=0, imported=False):
    example = {"path": owner, "shape": [2, 256], "dtype": "float32", "device": "cpu", "bytes": size}
    return Held(owner, kind, tensors, size, size, graphs, imported, True, (example,))


def judged(*survivors, counts=True, unnamed=0):
    row = Row("encode", after=Reading(0, 0, 0, 0), survivors=survivors, unnamed=unnamed, tolerance=10)
    return verdict(row, counts=counts)


def test_what_is_handed_over_owns_its_own_bytes():
    """A view does not keep what it is a view of, nor a value its graph; containers keep their kind."""
    row = Row("encode")
    whole = torch.ones(100, requires_grad=True)
    taken = row.hand_over({"rows": [whole[:10], 3], "pair": (whole.sum(), None)})

    assert taken["rows"][0].untyped_storage().nbytes() == 40
    assert not taken["pair"][0].requires_grad
    assert [type(each) for each in taken.values()] == [list, tuple]
    assert row.handed == row.handed_and_alive() == 44
    del taken
    assert (row.handed, row.handed_and_alive()) == (44, 0)
    assert [reference() for reference in row.handed_over()] == [None, None]


@pytest.mark.parametrize("value", [object(), [{1, 2}], {"model": torch.nn.Linear(1, 1)}])
def test_what_might_hold_what_is_to_go_is_refused(value):
    """Only tensors, plain values and containers of such."""
    with pytest.raises(InternalError, match="was handed over"):
        Row("encode").hand_over(value)


def test_verdicts_in_words():
    """One tensor by its path, several by their holder; a few are told, and what no name explains."""
    rest = "11 bytes that no Python object owns (autograd graphs, C++ or a library)"

    assert judged() == "released"
    assert judged(unnamed=10) == "released"
    assert judged(unnamed=11) == f"kept {rest}"
    assert judged(counts=False).startswith("unproven: ")
    assert judged(held()) == "kept 2.0 KiB: CACHE (float32 [2, 256], 2.0 KiB)"
    assert judged(held(tensors=3, kind="list", graphs=2), unnamed=11) == (
        f"kept 2.0 KiB: CACHE (list of 3 tensors, 2.0 KiB, 2 of them with autograd graphs); and {rest}"
    )
    assert judged(*[held()] * 5).endswith("; and 2 more")


def test_constants_of_what_was_imported_are_no_leak():
    """As long as they are few, and nothing hangs on them."""
    assert judged(held(imported=True)) == "released"
    assert judged(held(imported=True, graphs=1)).startswith("kept")
    assert judged(held(imported=True, size=CONSTANTS_BYTES + 1)).startswith("kept")
