"""The census: which tensors and modules were made inside a scope and live."""

from __future__ import annotations

import gc

import torch
from torch import nn

from app_trainer_sdk.training.census import Census


def test_what_was_made_inside_and_lives():
    """Tensors and modules of every class; not what was there before, what is gone, and other objects."""

    class Named(nn.Linear):
        """A class of its own."""

    before = torch.ones(3)
    census = Census()
    scope = census.enter()
    made = Named(2, 2, bias=False)
    gone = torch.ones(4)
    made.names = ["plain", before]
    del gone
    census.leave(scope)
    born = [reference() for reference in scope.born]

    assert {type(each) for each in born} == {Named, nn.Parameter}
    assert any(each is made for each in born)
    assert not any(each is before for each in born)


def test_garbage_that_was_set_aside_is_collected_on_request():
    """A cycle that was dropped inside lives on until everything is looked at."""
    census = Census()
    first = nn.Linear(2, 2)
    first.itself = [first]
    scope = census.enter()
    first.late = torch.ones(5)
    del first
    census.leave(scope)
    lived = [reference().numel() for reference in scope.born]
    census.leave(scope, everything=True)

    assert lived == [5]
    assert scope.born == []
    assert gc.get_freeze_count() == 0  # nothing stays set aside


def test_scopes_that_overlap():
    """Two scopes need not end in the order they began: each tells what was made while it was the inner one."""
    census = Census()
    outer, inner = census.enter(), census.enter()
    kept = [torch.ones(5)]
    census.leave(outer)
    kept.append(torch.ones(6))
    census.leave(inner)

    assert len(kept) == 2
    assert {reference().numel() for reference in inner.born} == {5, 6}
