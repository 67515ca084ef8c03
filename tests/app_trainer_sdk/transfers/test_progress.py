"""People see rate, time left and mirror; the control plane gets one row."""

from __future__ import annotations

import io
from typing import Any

from app_trainer_sdk.console import Console
from app_trainer_sdk.transfers.progress import Meter


class Told:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, int, int]] = []
        self.rows: list[dict[str, Any]] = []

    def transferring(self, text: str, done: int, total: int) -> None:
        """Keep it."""
        self.texts.append((text, done, total))

    def transferred(self, row: dict[str, Any]) -> None:
        """Keep it."""
        self.rows.append(row)


def test_the_line_and_the_row():
    """The rate is that of the last seconds, the end is told once, and mirrors are hosts without secrets."""
    time, told = [0.0], Told()
    meter = Meter("weights base", total=100_000_000, told=told, now=lambda: time[0])
    meter.reused(10_000_000)
    time[0] = 1.0
    meter.add(20_000_000, "https://a.example/f?sig=secret")
    meter.show()
    time[0] = 11.0
    meter.add(70_000_000, "https://b.example/f")
    meter.note("faults")
    for _ in range(3):
        meter.show()
    meter.finish(2)

    assert told.texts == [
        ("weights base: 30.0 MB of 100.0 MB  20.0 MB/s  4 s left  from a.example", 30_000_000, 100_000_000),
        ("weights base: 100.0 MB of 100.0 MB  7.0 MB/s  from b.example", 100_000_000, 100_000_000),
    ]
    assert told.rows == [
        {
            "phase": "weights base", "seconds": 11.0, "files": 2, "bytes": 90_000_000,
            "reused_bytes": 10_000_000,
            "bytes_per_second": 8181818, "mirrors": {"a.example": 20_000_000, "b.example": 70_000_000},
            "faults": 1,
        }
    ]  # fmt: skip


def test_a_wait_is_told():
    """What does not move says why, so that nobody takes it for a fault."""
    told = Told()
    Meter("weights base", total=10, told=told, now=lambda: 0.0).show("waiting for the process that fetches f")

    assert told.texts == [("weights base: 0 B of 10 B  waiting for the process that fetches f", 0, 10)]


def test_the_console_shows_a_transfer():
    """Plain lines not too often, and the last one always; a terminal is redrawn in place."""
    time, plain, bars = [0.0], io.StringIO(), io.StringIO()
    bars.isatty = lambda: True  # type: ignore[method-assign]
    for stream in (plain, bars):
        console = Console(stream, clock=lambda: time[0])
        for done in (1, 2, 4):
            console.transfer(f"weights: {done}", done, 4)
        Console(stream, quiet=True).transfer("nothing", 1, 2)

    assert plain.getvalue() == "weights: 1\nweights: 4\n"
    assert bars.getvalue().count("\r") == 3
    assert bars.getvalue().endswith("[########################] weights: 4\n")
