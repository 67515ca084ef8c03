"""Owns what a person sees while a job runs: a progress bar on a terminal, plain lines otherwise.

Where nobody looks but a collector of logs, each line is a JSON object (``logs.py`` says when). This file must
not know where its facts come from.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from app_trainer_sdk.logs import LEVELS, Format, json_line, log_format, log_level, log_stream
from app_trainer_sdk.quantities import seconds_text
from app_trainer_sdk.redaction import redact

BAR_CHARACTERS = 24
PLAIN_SECONDS = 5.0
FALLBACK_COLUMNS = 80


class Console:
    """Prints lines and one progress line.

    Args:
        stream: where to; a terminal gets a bar that is redrawn in place.
        clock: seconds, monotonic.
        quiet: print errors alone.
        form: of lines; ``json`` for whoever collects them.
        level: the least level that is printed, as Python's logging counts.
    """

    def __init__(
        self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic,
        quiet: bool = False, form: Format = "text", level: int = logging.INFO,
    ) -> None:  # fmt: skip
        self._stream = stream or log_stream()
        self._clock = clock
        self._quiet = quiet
        self._json, self._level = form == "json", level
        self._terminal = self._stream.isatty() and not self._json
        self._gone = False  # whether nobody reads any more
        self._drawn = False  # whether a bar stands on the current line
        self._told = float("-inf")

    def lines(self, lines: Sequence[str]) -> None:
        """Print whole lines; a bar being drawn gives way."""
        self._say(lines, {})

    def _say(self, lines: Sequence[str], facts: Mapping[str, Any]) -> None:
        least = max(self._level, logging.ERROR) if self._quiet else self._level
        lines = [line for line in lines if LEVELS[_level_of(line)] >= least]
        if self._gone or not lines:
            return
        if self._json:
            self._write("".join(json_line(_level_of(line), line, **facts) + "\n" for line in lines))
            return
        clear = "\r\x1b[2K" if self._drawn else ""
        self._drawn = False
        self._write(clear + "".join(line + "\n" for line in lines))

    def progress(self, facts: Mapping[str, Any]) -> None:
        """Show how far training is."""
        if self._quiet or self._gone or self._level > logging.INFO:
            return
        text = progress_text(facts)
        if self._terminal:
            line = f"{bar(facts['step'], facts['total'])} {text}"
            self._write("\r\x1b[2K" + line[: self._columns() - 1])  # a wrapped line could not be redrawn
            self._drawn = True
        elif self._clock() - self._told >= PLAIN_SECONDS or facts["step"] == facts["total"]:
            self._told = self._clock()
            self._say([text], {"step": facts["step"], "total": facts["total"]})

    def transfer(self, text: str, done: int, total: int) -> None:
        """Show how far a transfer is."""
        if self._quiet or self._gone or self._level > logging.INFO:
            return
        whole = 0 < total <= done
        if self._terminal:
            line = f"{bar(min(done, total), total)} {text}" if total else text
            self._write("\r\x1b[2K" + line[: self._columns() - 1] + ("\n" if whole else ""))
            self._drawn = not whole
        elif self._clock() - self._told >= PLAIN_SECONDS or whole:
            self._told = self._clock()
            self.lines([text])

    def _write(self, text: str) -> None:
        """A reader who went away (``run | head``) does not stop the run."""
        try:
            self._stream.write(redact(text))
            self._stream.flush()
        except (OSError, ValueError):
            self._gone = True

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or FALLBACK_COLUMNS
        except OSError:
            return FALLBACK_COLUMNS


def console_from_environment(*, quiet: bool = False) -> Console:
    """Where a command of a container writes: stderr, as the environment says."""
    return Console(quiet=quiet, form=log_format(sys.stderr), level=log_level())


def _level_of(line: str) -> str:
    """A line says itself how grave it is."""
    word = line.partition(":")[0]
    return word if word in ("error", "warning") else "info"


def progress_text(facts: Mapping[str, Any]) -> str:
    """``update 12/60  loss 4.213  1.3 updates/s  37 s left``."""
    words = [f"update {facts['step']}/{facts['total']}"]
    loss = facts.get("metrics", {}).get("loss")
    words.append("loss not finite" if loss is None else f"loss {loss:.4g}")
    rate = facts.get("updates_per_second") or 0.0
    if rate:
        words.append(f"{rate:.3g} updates/s" if rate >= 1 else f"{1 / rate:.3g} s/update")
    if facts.get("eta_seconds") is not None:
        words.append(f"{seconds_text(facts['eta_seconds'])} left")
    return "  ".join(words)


def bar(done: int, total: int) -> str:
    """A bar of fixed width."""
    filled = BAR_CHARACTERS * done // max(1, total)
    return "[" + "#" * filled + "-" * (BAR_CHARACTERS - filled) + "]"


def halved_text(tried: Mapping[str, Any]) -> str:
    """What a shortage of memory changed: in an update, or in an evaluation when it names a split."""
    if "split" in tried:
        return f"{tried['microbatch']} → {tried['next']} rows at once, the same sums"
    return f"microbatch {tried['microbatch']} → {tried['next']} at the same global batch"
