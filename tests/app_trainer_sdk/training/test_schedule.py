"""The learning rate as a function of updates made."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_trainer_sdk.training.schedule import learning_rate


def rates(count=10, **choices):
    asked = {"highest": 1.0, "updates": count, "warmup": 0, "shape": "linear", "final_ratio": 0.0, **choices}
    return [learning_rate(update, **asked) for update in range(count)]


def test_linear():
    """B3: lr(n) = 1 - n / 10."""
    assert rates() == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_warm_up():
    """H2: three updates of warm-up reach the highest rate, of which the first one moves already."""
    assert rates(6, warmup=3) == pytest.approx([1 / 3, 2 / 3, 1.0, 1.0, 2 / 3, 1 / 3])


def test_cosine_and_constant():
    """A cosine is half at half time; a constant stays."""
    assert rates(4, shape="cosine")[2] == pytest.approx(0.5)
    assert rates(4, shape="constant") == [1.0] * 4


def test_final_ratio():
    """The rate falls towards a share of the highest, and stays there past the end."""
    asked = {"highest": 2.0, "updates": 4, "warmup": 0, "final_ratio": 0.25}

    assert learning_rate(4, shape="linear", **asked) == pytest.approx(0.5)
    assert learning_rate(400, shape="cosine", **asked) == pytest.approx(0.5)


@given(
    updates=st.integers(1, 50), warmup=st.integers(0, 60),
    shape=st.sampled_from(["cosine", "linear", "constant"]), ratio=st.floats(0, 1),
)  # fmt: skip
def test_always_between_zero_and_the_highest(updates, warmup, shape, ratio):
    """H2: a pure function of its arguments: positive until the end, never above the highest, warm-ups that
    outlast the run included.
    """  # fmt: skip
    found = rates(updates, warmup=warmup, shape=shape, final_ratio=ratio, highest=3.0)

    assert found == rates(updates, warmup=warmup, shape=shape, final_ratio=ratio, highest=3.0)
    assert all(0.0 < rate <= 3.0 for rate in found)
