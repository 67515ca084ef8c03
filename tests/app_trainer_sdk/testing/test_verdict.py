"""How a promise is told to be kept, broken or not applicable."""

from __future__ import annotations

import pytest

from app_trainer_sdk.testing.verdict import BrokenPromise, Result, reason_of


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (Result("plan", "pass"), "pass  plan"),
        (Result("plan", "pass", "8 updates"), "pass  plan  (8 updates)"),
        (Result("plan", "fail", "why"), "FAIL  plan: why"),
        (Result("plan", "skip", "why"), "skip  plan: why"),
    ],
)
def test_a_result_is_one_line(result: Result, line: str):
    """A failure stands out; what does not apply is nothing wrong."""
    assert result.line() == line
    assert result.passed == (result.status != "fail")


def test_the_reason_is_the_authors_own_line():
    """A broken promise speaks for itself; anything else says where it was raised."""

    def authors() -> None:
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="column") as caught:
        authors()

    assert reason_of(BrokenPromise("a", expected="b")) == "a; expected b"
    assert reason_of(caught.value).startswith("ValueError: no such column; raised in test_verdict.py, line ")
    assert reason_of(caught.value).endswith(", authors")
    assert reason_of(KeyError()) == "KeyError"
