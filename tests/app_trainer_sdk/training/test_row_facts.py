"""What a dataset tells of its rows: asked for by settings alone, checked, digested."""

from __future__ import annotations

import math

import numpy
import pytest

from app_trainer_sdk.errors import BadData, BadJob
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training.order import Order
from app_trainer_sdk.training.row_facts import read_row_facts


class Told:
    """Four rows with what a test says of them."""

    def __init__(self, **told):
        for name, values in told.items():
            setattr(self, name, lambda values=values: values)

    def __len__(self):
        return 4


def read(dataset, **asked):
    return read_row_facts(dataset, Hyperparameters(**asked), "digits")


def test_a_dataset_is_asked_only_for_what_is_needed():
    """Without the settings nothing is asked, and the digest is empty."""
    facts = read(Told(weights="never read"))

    assert (facts.weights, facts.lengths, facts.groups, facts.digest()) == (None, None, None, "")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"sampling": "weighted"}, r"sampling 'weighted', and .* trainer digits has no weights\(\)"),
        ({"batching": "by_length"}, r"batching 'by_length', and .* trainer digits has no lengths\(\)"),
        ({"batching": "by_group"}, r"batching 'by_group', and .* trainer digits has no groups\(\)"),
    ],
)
def test_what_the_dataset_cannot_tell_is_named(asked, told):
    """A bad job names the setting and the method that is missing."""
    with pytest.raises(BadJob, match=told):
        read(Told(), **asked)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([1, -2, 3, -4], "row 1 has -2; expected 0 or more"),
        ([1, 2, math.nan, 4], "row 2 has nan; expected finite numbers"),
        ([math.inf, 2, 3, 4], "row 0 has inf; expected finite numbers"),
        ([0, 0, 0, 0], "all are 0; expected one above 0"),
        ([1, 2, 3], r"has shape \(3,\); expected one value for each of 4 rows"),
        (["1", "2", "3", "4"], "are of type <U1; expected numbers"),
    ],
)
def test_weights_that_cannot_be(weights, told):
    """Bad weights are told with the first row that has one."""
    with pytest.raises(BadData, match=told):
        read(Told(weights=weights), sampling="weighted")


@pytest.mark.parametrize("weights", [[0, 1e308, 1e308, 1e308], [5e-324, 0, 5e-324, 0]])
def test_extreme_weights_are_drawn_from(weights):
    """Neither a sum beyond a float's range nor one at its lower end loses a row, or finds one of weight 0."""
    facts = read(Told(weights=weights), sampling="weighted")
    order = Order(4, 4, seed=1, sampling="weighted", facts=facts)
    drawn = {int(row) for epoch in range(20) for row in order.epoch(epoch).ids}

    assert drawn == {row for row, weight in enumerate(weights) if weight}


def test_lengths_that_cannot_be():
    """A length that is no number has no place in an order."""
    with pytest.raises(BadData, match="row 3 has nan"):
        read(Told(lengths=[1, 2, 3, math.nan]), batching="by_length")


def test_groups_are_numbered_in_the_order_of_their_names():
    """Names may be words or numbers, and their sizes come in their order; NaN is in no group."""
    words = read(Told(groups=["b", "a", "b", "c"]), batching="by_group")
    numbers = read(Told(groups=numpy.array([7, 3, 7, 9])), batching="by_group")

    assert (words.names, words.group_sizes) == (("a", "b", "c"), [1, 2, 1])
    assert (numbers.names, numbers.digest()) == (("3", "7", "9"), words.digest())
    with pytest.raises(BadData, match="row 1 has nan"):
        read(Told(groups=[1.0, math.nan, 1.0, 1.0]), batching="by_group")


def test_the_digest_tells_any_difference():
    """Other lengths have another digest, and only what decides the order counts: weights by their shares."""
    lengths = [read(Told(lengths=each), batching="by_length").digest() for each in ([1, 2, 3, 4], [1, 2, 4, 3])]
    weights = [read(Told(weights=each), sampling="weighted").digest() for each in ([1, 2, 4, 0], [2, 4, 8, 0])]

    assert lengths[0] != lengths[1]
    assert weights[0] == weights[1] != ""
