"""Who holds an object: each kind of holder is told by a name that a person can find."""

from __future__ import annotations

import collections
import functools
import sys
import weakref

import pytest
import torch
from torch import nn

from app_trainer_sdk.training.owners import Tracer, referred, tensor_names

KEPT = {}


class Box:
    """Attributes."""


class Slots:
    """Attributes without a dictionary."""

    __slots__ = ("value",)


@functools.lru_cache
def remembered(key):
    return [key]


def make():
    """The object that is looked for: a list, so that nothing about tensors matters here."""
    return ["the object"]


def in_closure(thing):
    def hook():
        return thing

    return hook


def in_default(thing):
    def hook(value=thing):
        return value

    return hook


def in_generator(thing):
    held = thing
    yield held
    yield held


def raised(thing):
    try:
        raise ValueError("broken")
    except ValueError as error:
        return error


def attribute(thing, box):
    box.cache = {"encoder": thing}
    return box


def started(generator):
    next(generator)
    return generator


HOLDERS = {
    "a key": (lambda thing: {"a": thing}, "['a']"),
    "a long key": (lambda thing: {"k" * 99: thing}, "['" + "k" * 36 + "...]"),
    "a key that is an object": (lambda thing: {Box(): [thing]}, "[<Box>][0]"),
    "a list": (lambda thing: [None, thing], "[1]"),
    "a deque": (lambda thing: collections.deque([thing]), "[0]"),
    "an attribute": (lambda thing: attribute(thing, Box()), ".cache['encoder']"),
    "a slot": (lambda thing: attribute_slot(thing), ".value"),
    "a partial's argument": (lambda thing: functools.partial(print, 1, thing), ".args[1]"),
    "a partial's keyword": (lambda thing: functools.partial(print, end=thing), ".keywords['end']"),
    "a closure": (in_closure, " → closure variable `thing` of in_closure.<locals>.hook()"),
    "a default": (in_default, " → default of in_default.<locals>.hook()[0]"),
    "a generator": (lambda thing: started(in_generator(thing)), " → local `thing` in in_generator()"),
    "an exception": (raised, " → traceback of ValueError → local `thing` in raised() at test_owners.py:"),
}


def attribute_slot(thing):
    slots = Slots()
    slots.value = thing
    return slots


@pytest.mark.parametrize("kind", HOLDERS)
def test_holders(kind):
    """Every usual way to keep something alive is told as a person would write it."""
    hold, steps = HOLDERS[kind]
    reference = Box()
    reference.thing = make()
    KEPT["holder"] = hold(reference.thing)
    target = reference.__dict__.pop("thing")
    found = Tracer(machinery=[__file__]).path(target).text()
    KEPT.clear()

    assert found.startswith(f"{__name__}.KEPT['holder']{steps}")


def test_a_method_and_a_class():
    """A bound method keeps its object, a class its attributes."""
    box = Box()
    KEPT["method"] = functools.partial(list.append, [box])
    Box.memo = make()
    try:
        memo = Tracer(machinery=[__file__]).path(Box.memo).text()
        held = Tracer(machinery=[__file__]).path(box).text()
    finally:
        del Box.memo
        KEPT.clear()

    assert memo == f"{__name__}.Box.memo"
    assert held == f"{__name__}.KEPT['method'].args[0][0]"


def test_a_cached_result():
    """What ``lru_cache`` keeps is told as such."""
    found = Tracer(machinery=[__file__]).path(remembered(1)).text()
    remembered.cache_clear()

    assert found == f"{__name__}.remembered → a cached result"


def test_modules_in_modules():
    """Registries of torch leave no trace in a path; numbered children are indices."""
    KEPT["model"] = nn.ModuleDict({"encoder": nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))})
    model = KEPT["model"]
    paths = [
        Tracer(machinery=[__file__]).path(each).text()
        for each in (model["encoder"][0].weight, model["encoder"][1].running_mean)
    ]
    KEPT.clear()

    assert paths == [
        f"{__name__}.KEPT['model'].encoder[0].weight", f"{__name__}.KEPT['model'].encoder[1].running_mean",
    ]  # fmt: skip
    assert [name for name, _ in tensor_names(model)][:2] == [".encoder[0].weight", ".encoder[0].bias"]


def test_a_local_of_a_running_function():
    """A local is told with its function, file and line; what hangs on it with the way there."""
    target = make()
    line = sys._getframe().f_lineno + 1
    found = Tracer().path(target).text()
    box = Box()
    box.items = [make()]
    inside = Tracer().path(box.items[0]).text()
    place = "test_a_local_of_a_running_function() at test_owners.py"

    assert found == f"local `target` in {place}:{line}"
    assert inside.startswith(f"box.items[0] (`box` is a local in {place}:")


def test_looking_leaves_nothing_behind():
    """Asking a running function for its locals must not keep them alive."""
    box = Box()
    reference = weakref.ref(box)
    Tracer().path(make())
    del box

    assert reference() is None


def test_what_nobody_holds():
    """A tensor that only a graph of autograd has saved has no holder in Python; the rest has one."""
    weight = torch.ones(3, requires_grad=True)
    loss = (weight.exp() * 2).sum()
    alone = [loss.grad_fn.next_functions[0][0].next_functions[0][0]._saved_result]
    known = [weight, loss]

    assert referred([weight, loss]) == {id(weight), id(loss)}
    assert referred(alone, [id(alone)]) <= {id(alone[0])}
    assert len(known) == 2


def test_a_path_without_a_name():
    """Where the way ends without a name, what was found so far is told."""
    holder = [make()]
    target = holder[0]
    keep = iter([holder])
    del holder
    found = Tracer(machinery=[__file__]).path(target).text()

    assert found.startswith("a ")
    assert "that only C++ or a running expression holds" in found
    assert next(keep) == [["the object"]]
