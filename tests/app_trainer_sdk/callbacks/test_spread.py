"""Throttling loses no extreme: an acknowledged event, or one after it, has told everything."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_trainer_sdk.callbacks.spread import Unheard, join_all, spread_of

VALUES = st.lists(st.floats(-1e6, 1e6) | st.none(), min_size=1, max_size=20)


def spread(values: list[float | None]) -> dict[str, object]:
    return dict(join_all([{"loss": spread_of([value])} for value in values])["loss"])


@given(VALUES)
def test_a_spread_is_that_of_its_values(values: list[float | None]):
    """Last, mean, least, most and number of the finite ones."""
    told, finite = spread(values), [value for value in values if value is not None]

    assert (told["last"], told["n"]) == (values[-1], len(finite))
    if finite:
        assert (told["min"], told["max"]) == (min(finite), max(finite))
        assert told["mean"] == pytest.approx(sum(finite) / len(finite), abs=1e-6)


def test_what_is_not_finite_counts_as_nothing_but_the_last():
    """J1: a NaN spoils no mean."""
    assert spread([1.0, math.nan, 3.0, math.inf]) == {"last": None, "mean": 2.0, "min": 1.0, "max": 3.0, "n": 2}


@given(
    st.lists(
        st.tuples(st.floats(-10, 10), st.sampled_from(["tell", "tell and hear", "hear old", ""])), max_size=30
    )
)
def test_nothing_unheard_is_forgotten(story: list[tuple[float, str]]):
    """Whatever is told and whatever of it is heard: the next event has every value since the last heard one."""
    unheard, told, since = Unheard(), 0, dict[int, float]()
    for number, (value, then) in enumerate(story):
        unheard.add({"loss": spread_of([value])})
        since[number] = value
        if then.startswith("tell"):
            told = number + 1
            unheard.told(told)
        if then == "tell and hear":
            unheard.heard(told)
            since = {}
        elif then == "hear old" and told:
            unheard.heard(told)
            since = {key: each for key, each in since.items() if key >= told}
    spreads, _ = unheard.total()

    assert spreads.get("loss", {}).get("max") == max(since.values(), default=None)
    assert spreads.get("loss", {}).get("min") == min(since.values(), default=None)
    assert spreads.get("loss", {}).get("n", 0) == len(since)


def test_a_receiver_that_is_away_for_long_costs_no_memory():
    """Ten thousand reports nobody heard: a handful of parts, no extreme lost."""
    unheard = Unheard()
    for number in range(10_000):
        unheard.add({"loss": spread_of([float(number % 777)])}, ["gradient_norm"] if number == 5 else [])
        unheard.told(number + 1)
    spreads, nonfinite = unheard.total()

    assert len(unheard._parts) <= 8
    assert (spreads["loss"]["max"], spreads["loss"]["n"], nonfinite) == (776.0, 10_000, ["gradient_norm"])
    unheard.heard(math.inf)
    assert unheard.total() == ({}, [])


def test_a_spread_of_many_is_that_of_each_joined():
    """Values that were not finite are no extreme, and count in nothing but what came last."""
    values = [2.0, None, 5.0, 0.5, math.inf]

    assert spread_of(values) == {"last": None, "mean": 2.5, "min": 0.5, "max": 5.0, "n": 3}
    assert spread_of(values) == spread(values)
