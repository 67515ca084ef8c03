"""A wait for data is told by the step of the way that it was spent on."""

from __future__ import annotations

from typing import Any

import pytest

from app_trainer_sdk.data_wait import ReadTimes, data_wait, split_wait

READ = ReadTimes(fetch=1.0, decode=6.0, collate=1.0)


@pytest.mark.parametrize(
    ("seconds", "parts"),
    [
        (8.0, {"fetch": 1.0, "decode": 6.0, "collate": 1.0, "handover": 0.0}),  # read here
        (2.0, {"fetch": 0.25, "decode": 1.5, "collate": 0.25, "handover": 0.0}),  # workers read ahead
        (9.0, {"fetch": 1.0, "decode": 6.0, "collate": 1.0, "handover": 1.0}),  # workers began
        (0.0, {"fetch": 0.0, "decode": 0.0, "collate": 0.0, "handover": 0.0}),
    ],
)
def test_a_wait_is_shared_out_as_reading_was(seconds: float, parts: dict[str, float]):
    """The parts add up to the wait, and none is longer than it took."""
    assert split_wait(seconds, READ) == pytest.approx(parts)


def test_nothing_read_is_all_handover():
    """A rank without a microbatch of its own in a window."""
    assert split_wait(0.5, ReadTimes())["handover"] == 0.5


def line(seconds: float, waited: float, **parts: float) -> dict[str, Any]:
    told = {"data_parts": parts} if parts else {}
    return {"seconds": seconds, "data_seconds": waited, **told}


def test_the_sum_over_a_run_names_the_largest_part():
    """Handing tensors to the device is waiting for data too."""
    lines = [
        line(1.0, 0.3, fetch=0.0, decode=0.2, collate=0.1, handover=0.0, transfer=0.1),
        line(1.0, 0.1, fetch=0.0, decode=0.1, collate=0.0, handover=0.0, transfer=0.0),
    ]

    assert data_wait(lines) == {
        "seconds": 2.0, "waited_seconds": 0.5, "share": 0.25, "most": "decode",
        "parts": pytest.approx(
            {"fetch": 0.0, "decode": 0.3, "collate": 0.1, "handover": 0.0, "transfer": 0.1, "untold": 0.0}
        ),
    }  # fmt: skip


def test_what_no_line_tells_apart_is_untold():
    """Waits that were short, or those of a loop of its own; without an update nothing is told."""
    wait = data_wait([line(2.0, 0.5)])

    assert wait is not None
    assert (wait["share"], wait["most"], wait["parts"]["untold"]) == (0.25, "untold", 0.5)
    assert data_wait([]) is None
