"""A1: text for people, one JSON object a line for collectors, never a secret."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from app_trainer_sdk import redaction
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.logs import check_logs, log_format, log_level, settle_logs
from app_trainer_sdk.redaction import remember


class Terminal(io.StringIO):
    """A stream that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither variable is set, and what a test remembers is forgotten after it."""
    for name in ("LOG_FORMAT", "LOG_LEVEL"):
        monkeypatch.delenv("APP_TRAINER_" + name, raising=False)
    monkeypatch.setattr(redaction, "_known", set())
    monkeypatch.setattr(redaction, "_pattern", None)


@contextmanager
def bare_logging() -> Iterator[None]:
    """Logging as a process finds it: without the handlers that pytest adds for the time of a test."""
    root, ours = logging.getLogger(), logging.getLogger("app_trainer_sdk")
    kept, level = root.handlers[:], ours.level
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = kept
        ours.setLevel(level)


def said(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_terminal_gets_text_and_a_pipe_json(monkeypatch: pytest.MonkeyPatch):
    """Unless the environment says otherwise."""
    assert (log_format(Terminal()), log_format(io.StringIO())) == ("text", "json")
    monkeypatch.setenv("APP_TRAINER_LOG_FORMAT", "json")
    assert log_format(Terminal()) == "json"
    monkeypatch.setenv("APP_TRAINER_LOG_FORMAT", "text")
    assert log_format(io.StringIO()) == "text"


@pytest.mark.parametrize(("name", "value"), [("LOG_FORMAT", "jsn"), ("LOG_LEVEL", "verbose")])
def test_what_is_no_format_or_level_is_refused(name: str, value: str, monkeypatch: pytest.MonkeyPatch):
    """With what would be one."""
    check_logs()
    monkeypatch.setenv("APP_TRAINER_" + name, value)

    with pytest.raises(BadJob, match=f"APP_TRAINER_{name} is '{value}'.*json|warning"):
        check_logs()


def test_json_lines_say_how_grave_they_are_and_no_secret():
    """One object a line, whatever the text holds."""
    stream = io.StringIO()
    console = Console(stream, form="json")
    remember("tkn-12345")
    console.lines(["phase: train", 'error: a "quoted" tkn-12345\nhttps://h/p?sig=abcdefgh', "warning: →"])
    console.progress({"step": 2, "total": 2, "metrics": {"loss": 0.5}})

    assert [(each["level"], each["message"]) for each in said(stream)] == [
        ("info", "phase: train"), ("error", 'error: a "quoted" [redacted]\nhttps://h/p?[redacted]'),
        ("warning", "warning: →"), ("info", "update 2/2  loss 0.5"),
    ]  # fmt: skip
    assert (said(stream)[-1]["step"], said(stream)[-1]["total"]) == (2, 2)


def test_a_level_leaves_the_rest_out(monkeypatch: pytest.MonkeyPatch):
    """Progress too, also on a terminal."""
    monkeypatch.setenv("APP_TRAINER_LOG_LEVEL", "warning")
    stream = Terminal()
    console = Console(stream, level=log_level())
    console.lines(["phase: train", "warning: w", "error: e"])
    console.progress({"step": 1, "total": 2, "metrics": {"loss": 0.5}})

    assert stream.getvalue() == "warning: w\nerror: e\n"


def test_log_records_are_lines_like_the_others():
    """With the logger's name and the traceback; a library says its warnings only."""
    stream = io.StringIO()
    remember("tkn-12345")
    with bare_logging():
        settle_logs(stream)
        logging.getLogger("app_trainer_sdk.x").info("event %s", "tkn-12345")
        logging.getLogger("library").info("nobody wants to know")
        try:
            raise ValueError("tkn-12345")
        except ValueError:
            logging.getLogger("library").exception("broken")
    first, second = said(stream)

    assert (first["level"], first["message"]) == ("info", "event [redacted]")
    assert (first["logger"], second["logger"]) == ("app_trainer_sdk.x", "library")
    assert (second["level"], second["message"]) == ("error", "broken")
    assert second["traceback"].endswith("ValueError: [redacted]")


def test_configured_logging_is_left_alone():
    """A program that runs jobs has handlers of its own."""
    own = logging.NullHandler()
    with bare_logging():
        logging.getLogger().addHandler(own)
        settle_logs(io.StringIO())
        there = logging.getLogger().handlers[:]

    assert there == [own]
