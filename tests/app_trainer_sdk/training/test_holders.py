"""Who holds what outlived a scope: each storage once, the largest first, and in good time."""

from __future__ import annotations

import contextvars

import pytest
import torch
from torch import nn

from app_trainer_sdk.training.census import Census
from app_trainer_sdk.training.holders import MOST_TRAILS, NOBODY, NOT_SOUGHT, name_holders

KEPT = {}


@pytest.fixture(autouse=True)
def empty():
    yield
    KEPT.clear()


def held_after(work, **options):
    census = Census()
    scope = census.enter()
    work()
    census.leave(scope)
    with census.thawed():
        return name_holders(scope, "cpu", **options)


def test_what_was_there_before_is_no_survivor():
    """Only what was made inside counts, and of that only what lives."""
    KEPT["before"] = torch.ones(10)

    def work():
        KEPT["inside"] = torch.ones(20)
        KEPT["gone"] = torch.ones(30)
        del KEPT["gone"]

    (held,) = held_after(work)

    assert held.owner == f"{__name__}.KEPT['inside']"
    assert held.bytes == held.device_bytes == 80


def test_a_storage_counts_once():
    """Views and tied weights share their memory."""

    def work():
        KEPT["whole"] = whole = torch.ones(100)
        KEPT["view"] = whole[:10]

    (held,) = held_after(work)

    assert (held.tensors, held.bytes, held.kind) == (2, 400, "dict")


def test_a_view_holds_all_that_it_was_taken_of():
    """D1: a slice that is kept keeps the whole; whoever keeps it is told with those bytes, and alone."""

    def work():
        KEPT["view"] = torch.ones(100)[:1]

    (held,) = held_after(work)

    assert (held.owner, held.tensors, held.bytes) == (f"{__name__}.KEPT['view']", 1, 400)
    assert [each["bytes"] for each in held.examples] == [400]


def test_the_search_is_no_holder():
    """What only C++ holds the way to is told by what is known of it, never by a local of the search itself."""
    variable = contextvars.ContextVar("kept", default=None)
    (held,) = held_after(lambda: variable.set(torch.ones(100)) and None)
    variable.set(None)

    assert held.bytes == 400
    assert "owners.py" not in held.owner


def test_what_has_no_memory():
    """Tensors on the meta device are shapes: a planner's are no leak."""

    def work():
        KEPT["shapes"] = nn.Linear(1000, 1000, device="meta")

    assert held_after(work) == []


def test_modules_are_told_whole():
    """All tensors of a module and its children stand under one holder, gradients included."""

    def work():
        KEPT["model"] = model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        model(torch.ones(4)).sum().backward()

    held = held_after(work)[0]

    assert (held.owner, held.kind, held.tensors) == (f"{__name__}.KEPT['model']", "Sequential", 8)
    assert held.examples[0]["path"].startswith(f"{__name__}.KEPT['model'][")


def test_a_module_from_before_got_a_tensor():
    """A tensor put into a module that was there before is told with the way through it."""
    KEPT["model"] = nn.Sequential(nn.Linear(2, 2))

    def work():
        KEPT["model"][0].register_buffer("cache", torch.ones(50))

    (held,) = held_after(work)

    assert held.owner == f"{__name__}.KEPT['model'][0].cache"


def test_many_survivors():
    """Among many holders the largest are named; the rest is told as one, so that naming ends."""

    def work():
        for number in range(MOST_TRAILS + 5):
            KEPT[number] = {"only": torch.ones(100 + number)}

    held = held_after(work, clock=lambda: 0.0)

    assert len(held) == MOST_TRAILS + 1
    assert sum(each.tensors for each in held) == MOST_TRAILS + 5
    assert {each.owner for each in held if each.tensors > 1} == {NOT_SOUGHT}
    assert held[1].owner == f"{__name__}.KEPT[24]['only']"


def test_naming_ends_in_time():
    """After the time for it nobody is looked for any more; sizes are told all the same."""

    def work():
        KEPT["model"] = nn.Linear(10, 10)
        KEPT["tensor"] = torch.ones(7)

    ticks = iter(range(0, 1000, 100))
    held = held_after(work, clock=lambda: next(ticks))

    assert {each.owner for each in held} == {NOT_SOUGHT}
    assert sum(each.bytes for each in held) == 440 + 28


def test_handed_over_and_views_of_it():
    """What was handed over is excused, whichever tensor of its memory is looked at."""
    import weakref

    def work():
        KEPT["features"] = features = torch.ones(10)
        KEPT["view"] = features[:3]
        handed.append(weakref.ref(features))

    handed = []

    assert held_after(work, handed=handed) == []


def test_what_graphs_have_saved():
    """Activations that only autograd holds are told as such and not under some holder's name."""
    weight = torch.ones(1000, requires_grad=True)

    def work():
        KEPT["loss"] = (weight.exp().exp() * 2).sum()

    held = held_after(work)

    assert held[0].owner == f"{__name__}.KEPT['loss']"
    assert held[0].graphs == 1
    assert all(each.owner == NOBODY for each in held[1:])
