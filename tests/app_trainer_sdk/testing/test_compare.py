"""Values are compared bit for bit, and the first difference is named."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy
import pytest
import torch

from app_trainer_sdk.testing.compare import first_difference, global_states, moved_generators


@dataclass
class Row:
    x: object


class Plain:
    def __init__(self, x):
        self.x = x


@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": [1, (2.0, "x")], "t": torch.arange(3)},
        lambda: torch.tensor([1.0, float("nan")]),
        lambda: numpy.array([1.0, float("nan")]),
        lambda: float("nan"),
        lambda: Row(torch.ones(2)),
        lambda: Plain([torch.ones(2)]),
    ],
)
def test_equal_values_have_no_difference(make):
    """Two values made alike are equal, NaN included."""
    assert first_difference(make(), make()) == ""


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ({"a": [1, 2]}, {"a": [1, 3]}, "value['a'][1] is 2 and 3"),
        ({"a": 1}, {"b": 1}, "value has 'a' only once"),
        ([1], [1, 2], "value has 1 and 2 parts"),
        (1, 1.0, "value is a int and a float"),
        (torch.ones(2), torch.tensor([1.0, 2.0]), "value differs in 1 of 2 places"),
        (torch.ones(2), torch.ones(2).double(), "value is torch.float32 (2,) and torch.float64 (2,)"),
        (numpy.ones(2), numpy.zeros(2), "value differs"),
        (Row(1), Row(2), "value['x'] is 1 and 2"),
        (Plain(1), Plain(2), "value['x'] is 1 and 2"),
    ],
)
def test_the_first_difference_is_named(one, other, told):
    """The message leads to the place."""
    assert first_difference(one, other) == told


@pytest.mark.parametrize(
    ("draw", "library"),
    [(random.random, "python"), (numpy.random.rand, "numpy"), (lambda: torch.rand(1), "torch")],
)
def test_a_draw_shows_in_its_library(draw, library):
    """Each global generator is watched, and one may be left out."""
    before = global_states()

    draw()

    assert moved_generators(before) == [library]
    assert moved_generators(before, but=library) == []
