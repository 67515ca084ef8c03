"""Owns how the lines of a container look: text for people, or one JSON object a line for whoever collects them.

``APP_TRAINER_LOG_FORMAT`` chooses, else text goes to a terminal and JSON anywhere else;
``APP_TRAINER_LOG_LEVEL`` says which lines are left out. Everything is redacted. Logs of ranks
are files of their own and stay as libraries write them. This file must not know what lines say.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from app_trainer_sdk.errors import BadJob, did_you_mean
from app_trainer_sdk.paths import PREFIX
from app_trainer_sdk.redaction import RedactingFilter, redact
from app_trainer_sdk.standard_streams import standard_error

Format = Literal["text", "json"]
FORMAT, LEVEL = PREFIX + "LOG_FORMAT", PREFIX + "LOG_LEVEL"
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def check_logs() -> None:
    """Refuse what no format and no level is.

    Raises:
        BadJob: one of the two.
    """
    for name, known in ((FORMAT, ("text", "json")), (LEVEL, tuple(LEVELS))):
        found = os.environ.get(name)
        if found and found not in known:
            expected = f"one of {', '.join(known)} ({did_you_mean(found, known)})"
            raise BadJob(f"{name} is {found!r}", expected=expected, setting=name)


def log_format(stream: TextIO) -> Format:
    """How lines on a stream look."""
    asked = os.environ.get(FORMAT)
    if asked in ("text", "json"):
        return "json" if asked == "json" else "text"
    return "text" if stream.isatty() else "json"


def log_stream() -> TextIO:
    """Standard error, where lines go; what nobody took is told there when somebody reads again."""

    def lost(size: int) -> str:
        told = f"warning: {size:,} bytes are missing here: nobody read them"
        return (json_line("warning", told) if log_format(sys.stderr) == "json" else told) + "\n"

    return standard_error(lost)


def log_level() -> int:
    """The least level that is said."""
    return LEVELS.get(os.environ.get(LEVEL, ""), logging.INFO)


def json_line(level: str, message: str, **facts: Any) -> str:
    """One line: when, how grave, what; redacted, without its line end."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    document = {"time": time, "level": level, "message": redact(message), **facts}
    return json.dumps(document, ensure_ascii=False, default=str)


def settle_logs(stream: TextIO | None = None) -> None:
    """Records of Python's logging look like the other lines: the SDK's from the level on, others' warnings.

    Whoever has configured logging keeps that.
    """
    root = logging.getLogger()
    logging.getLogger("app_trainer_sdk").setLevel(log_level())
    if root.handlers:
        return
    there = stream or log_stream()
    handler = logging.StreamHandler(there)
    handler.addFilter(RedactingFilter())
    if log_format(there) == "json":
        handler.setFormatter(_JsonFormatter())
    root.addHandler(handler)


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        trace = {"traceback": redact(record.exc_text)} if record.exc_text else {}
        return json_line(record.levelname.lower(), record.getMessage(), logger=record.name, **trace)
