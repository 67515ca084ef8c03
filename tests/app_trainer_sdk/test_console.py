"""What a person sees: a bar on a terminal, plain lines otherwise, and never an error for the run."""

from __future__ import annotations

import io
import os
import pty
from typing import Any

from app_trainer_sdk.console import Console, bar, progress_text


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    """A pipe whose reader went away."""

    tried = 0

    def write(self, text: str) -> int:
        self.tried += 1
        raise BrokenPipeError


def facts(step: int, total: int = 60, **more: Any) -> dict[str, Any]:
    return {
        "step": step,
        "total": total,
        "metrics": {"loss": 4.2134},
        "updates_per_second": 1.3,
        "eta_seconds": 37,
    } | more


def test_progress_has_update_loss_rate_and_time_left():
    """Each only when it is known; a loss that is no number is said in words."""
    assert progress_text(facts(12)) == "update 12/60  loss 4.213  1.3 updates/s  37 s left"
    assert (
        progress_text(facts(12, updates_per_second=0.25, eta_seconds=None))
        == "update 12/60  loss 4.213  4 s/update"
    )
    assert progress_text({"step": 1, "total": 2, "metrics": {"loss": None}}) == "update 1/2  loss not finite"


def test_the_bar_has_one_width():
    """Empty, half, full, and for a run of no length."""
    assert [
        bar(*pair).strip("[]") for pair in ((0, 60), (30, 60), (60, 60), (0, 0))
    ] == ["-" * 24, "#" * 12 + "-" * 12, "#" * 24, "-" * 24]  # fmt: skip


def test_a_terminal_gets_a_bar_redrawn_in_place():
    """A whole line takes its place and the bar comes back below."""
    stream = Terminal()
    console = Console(stream)
    console.progress(facts(30))
    console.progress(facts(31))
    console.lines(["phase: export"])
    console.progress(facts(60))

    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().count("\r\x1b[2K") == 4
    assert "\r\x1b[2Kphase: export\n" in stream.getvalue()
    assert stream.getvalue().endswith("37 s left")


def test_a_line_never_wraps_on_a_narrow_terminal():
    """A wrapped line could not be redrawn: it is cut to the width of the terminal."""
    import fcntl
    import struct
    import termios

    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(inner, "w") as stream:
        Console(stream).progress(facts(1000, total=32000))
        drawn = os.read(outer, 4096).decode()
    os.close(outer)

    assert drawn.startswith("\r\x1b[2K[")
    assert len(drawn.removeprefix("\r\x1b[2K")) == 39


def test_a_file_gets_plain_lines_now_and_then():
    """One every five seconds and the last one, without control characters."""
    stream, now = io.StringIO(), [0.0]
    console = Console(stream, clock=lambda: now[0])
    for step in range(1, 61):
        now[0] += 0.5
        console.progress(facts(step))

    assert [int(line.split("/")[0].split()[1]) for line in stream.getvalue().splitlines()] == [
        1,
        11,
        21,
        31,
        41,
        51,
        60,
    ]
    assert "\x1b" not in stream.getvalue()


def test_quiet_says_errors_alone():
    """Neither other lines nor progress."""
    stream = io.StringIO()
    console = Console(stream, quiet=True)
    console.lines(["a", "warning: b", "error: c"])
    console.progress(facts(60))

    assert stream.getvalue() == "error: c\n"


def test_a_reader_who_went_away_does_not_stop_the_run():
    """``run | head`` ends the printing, not the training: nothing more is tried, whether closed or gone."""
    gone, closed = Gone(), io.StringIO()
    consoles = [Console(gone), Console(closed)]
    closed.close()
    for console in consoles:
        console.lines(["a"])
        console.progress(facts(60))

    assert gone.tried == 1
