"""The batch: two of its numbers give the third, each with its reason, and contradictions show both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.errors import BadData, BadJob
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.plan import Effective
from app_trainer_sdk.planning.batch import split_update


def numbers(
    rows: int | None = 3200, *, replicas: int = 1, minimum_rows: int = 1, coupled_rows: bool = False,
    chosen: int = 0, **asked: Any,
) -> dict[str, Effective]:  # fmt: skip
    data = DataFacts(rows, minimum_rows=minimum_rows, coupled_rows=coupled_rows)
    there = {"microbatch": Effective("auto", chosen, "the fastest that fits")} if chosen else {}
    return split_update(Hyperparameters.read(asked), replicas, data, there)


def batch(made: Mapping[str, Effective]) -> tuple[Any, ...]:
    return tuple(made[name].effective for name in ("microbatch", "gradient_accumulation_steps", "global_batch"))


@pytest.mark.parametrize(
    ("asked", "replicas", "expected"),
    [
        ({}, 1, (8, 1, 8)),
        ({}, 2, (8, 1, 16)),
        ({"microbatch": 3}, 1, (3, 1, 3)),
        ({"gradient_accumulation_steps": 4}, 1, (8, 4, 32)),
        ({"gradient_accumulation_steps": 4}, 2, (8, 4, 64)),
        ({"global_batch": 16}, 1, (8, 2, 16)),
        ({"global_batch": 6}, 1, (6, 1, 6)),
        ({"global_batch": 13}, 1, (1, 13, 13)),
        ({"global_batch": 24}, 2, (6, 2, 24)),
        ({"microbatch": 2, "gradient_accumulation_steps": 8}, 1, (2, 8, 16)),
        ({"microbatch": 2, "gradient_accumulation_steps": 8}, 4, (2, 8, 64)),
        ({"microbatch": 2, "global_batch": 16}, 1, (2, 8, 16)),
        ({"microbatch": 2, "global_batch": 16}, 4, (2, 2, 16)),
        ({"gradient_accumulation_steps": 8, "global_batch": 16}, 1, (2, 8, 16)),
        ({"microbatch": 2, "gradient_accumulation_steps": 4, "global_batch": 16}, 2, (2, 4, 16)),
    ],
)
def test_any_two_of_the_batch_give_the_third(asked: dict[str, int], replicas: int, expected: tuple[int, ...]):
    """Given one, two or three of the numbers, the rest follows; replicas are a factor."""
    assert expected == batch(numbers(replicas=replicas, **asked))


@pytest.mark.parametrize(
    ("asked", "replicas", "shown"),
    [
        ({"microbatch": 2, "gradient_accumulation_steps": 4, "global_batch": 16}, 1, "2 × 4 × 1 = 8"),
        ({"microbatch": 8, "global_batch": 16}, 4, "8 × 1 × 4 = 32"),
        ({"gradient_accumulation_steps": 8, "global_batch": 16}, 4, "1 × 8 × 4 = 32"),
        ({"global_batch": 9}, 2, "global_batch 9 over 2 replicas; expected a multiple of 2"),
    ],
)
def test_a_contradiction_shows_its_multiplication(asked: dict[str, int], replicas: int, shown: str):
    """The message has both sides of the equation, replicas included."""
    with pytest.raises(BadJob) as caught:
        numbers(replicas=replicas, **asked)

    assert shown in str(caught.value)
    assert caught.value.problems[0].pointer == "/hyperparameters/global_batch"


def test_coupled_rows_are_never_split():
    """The whole batch is one microbatch; whatever would split it is refused, asked for or following."""
    assert batch(numbers(coupled_rows=True, global_batch=32)) == (32, 1, 32)
    assert batch(numbers(coupled_rows=True, global_batch=32, replicas=2)) == (16, 1, 32)
    assert batch(numbers(coupled_rows=True)) == (8, 1, 8)
    assert batch(numbers(5, coupled_rows=True)) == (5, 1, 5)
    for asked in ({"gradient_accumulation_steps": 2}, {"global_batch": 16, "microbatch": 8}):
        with pytest.raises(BadJob, match="rows see each other"):
            numbers(coupled_rows=True, **asked)
    with pytest.raises(BadJob, match="global_batch 2 over 4 replicas"):
        numbers(coupled_rows=True, global_batch=2, replicas=4)


@pytest.mark.parametrize(("rows", "steps", "replicas", "expected"), [(5, 1, 1, 5), (20, 4, 1, 5), (5, 1, 2, 2)])
def test_a_batch_nobody_asked_for_shrinks_to_the_rows(rows: int, steps: int, replicas: int, expected: int):
    """CASES I3: where the batch is the plan's own choice it is reduced, and the reason says so."""
    made = numbers(rows, gradient_accumulation_steps=steps, replicas=replicas)

    assert expected == made["microbatch"].effective
    assert f"{rows} rows do not fill one update" in made["microbatch"].why


def test_no_microbatch_is_smaller_than_the_trainer_can_take():
    """CASES I3: batch norm cannot train on one row. The plan chooses larger pieces, or refuses a wish."""
    assert batch(numbers(global_batch=13)) == (1, 13, 13)
    assert batch(numbers(global_batch=13, minimum_rows=2)) == (13, 1, 13)
    assert batch(numbers(global_batch=12, minimum_rows=2)) == (6, 2, 12)
    for asked in (
        {"microbatch": 1},
        {"global_batch": 1},
        {"global_batch": 4, "gradient_accumulation_steps": 4},
    ):
        with pytest.raises(BadJob, match="at least 2, the fewest rows"):
            numbers(minimum_rows=2, **asked)
    with pytest.raises(BadData, match="1 rows; expected at least 2"):
        numbers(1, minimum_rows=2)


@pytest.mark.parametrize(
    ("chosen", "rows", "replicas", "asked", "expected"),
    [
        (4, 3200, 1, {}, (4, 2, 8)),
        (64, 3200, 1, {"global_batch": 128}, (64, 2, 128)),
        (16, 3200, 2, {"global_batch": 64}, (16, 2, 64)),
        (8, 6, 1, {}, (6, 1, 6)),
        (4, 6, 1, {}, (3, 2, 6)),
        (8, 3200, 1, {"microbatch": 2}, (2, 1, 2)),
        (8, 3200, 1, {"gradient_accumulation_steps": 4, "global_batch": 16}, (4, 4, 16)),
    ],
)
def test_a_microbatch_chosen_for_a_card_divides_the_same_update(chosen, rows, replicas, asked, expected):
    """It is the most rows at once, fewer where the data has too few, and never instead of what was asked."""
    assert expected == batch(numbers(rows, replicas=replicas, chosen=chosen, **asked))


def test_a_microbatch_chosen_for_a_card_says_so():
    """Its reason comes along, and what became of it."""
    assert numbers(chosen=4)["microbatch"] == Effective("auto", 4, "the fastest that fits")
    assert numbers(6, chosen=4)["microbatch"].why == "the largest divisor of 6 up to 4: the fastest that fits"
    assert batch(numbers(coupled_rows=True, chosen=4)) == (8, 1, 8)
    assert batch(numbers(global_batch=13, minimum_rows=2, chosen=4)) == (13, 1, 13)
