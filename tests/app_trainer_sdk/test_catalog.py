"""Catalog rows are plain data with honest defaults."""

from __future__ import annotations

import dataclasses

import pytest

from app_trainer_sdk.catalog import Floor, ModelRow, Requirements, WeightSource


def test_a_floor_is_declared_until_shown_otherwise():
    """A number somebody wrote down carries the lowest grade."""
    assert Floor(4.0).grade == "declared"
    assert Floor(4.0).evidence == {}


def test_a_row_needs_three_facts():
    """Name, title and size; everything else may be unknown."""
    row = ModelRow("tiny", "Tiny", 64)

    assert (row.architecture, row.weights, row.floors, row.defaults, row.licence) == ({}, {}, {}, {}, "")


def test_requirements_state_nothing_by_default():
    """Zero and empty mean that no need is stated."""
    assert not any(dataclasses.asdict(Requirements()).values())


@pytest.mark.parametrize("value", [Floor(1.0), WeightSource("abc"), ModelRow("a", "A", 1), Requirements()])
def test_rows_are_frozen(value):
    """What is published cannot be changed by who reads it."""
    field = dataclasses.fields(value)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(value, field, None)
