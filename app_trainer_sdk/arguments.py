"""Owns what all commands have in common: one parser, and one answer to a path that is not what was meant.

A wrong request ends with 64, whichever command it was made of. This file must not know what a command does.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from app_trainer_sdk.errors import BadJob, DiskFull, ExitCode, is_disk_full
from app_trainer_sdk.files import write_json


class Parser(argparse.ArgumentParser):
    """argparse, with the exit code of a wrong request: its own 2 means nothing to a control plane.

    Where an argument is a ``Path``, nothing is no path: an unset variable must not mean the folder around.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.register("type", Path, _path)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and how the command is written."""
        self.exit(ExitCode.BAD_JOB, f"{self.prog}: {message}\n{self.format_usage()}")


#: More processes than any one machine has accelerators for.
MOST_RANKS = 1024
FILE, FOLDER = "a file", "a folder"


def existing(path: Path, expected: str, setting: str, *, kinds: Sequence[str] = (FILE, FOLDER)) -> Path:
    """``path``, where there is something.

    Args:
        path: what was given.
        expected: what should be there, for the message.
        setting: the argument that gave it.
        kinds: what it may be; a file is whatever can be read, a pipe too.

    Raises:
        BadJob: nothing is there, or something of another kind.
    """
    if (found := found_at(path)) in kinds:
        return path
    raise BadJob(f"{found} at {path}", expected=expected, setting=setting)


def existing_folder(path: Path, expected: str, setting: str) -> Path:
    """``path``, which is a folder; raises as :func:`existing` does."""
    return existing(path, expected, setting, kinds=(FOLDER,))


def existing_file(path: Path, expected: str, setting: str) -> Path:
    """``path``, which is a file; raises as :func:`existing` does."""
    return existing(path, expected, setting, kinds=(FILE,))


def job_directory(path: Path, setting: str = "DIR") -> Path:
    """The directory of a job that was begun there, from the argument of a command that looks into it."""
    return existing_folder(path, "the directory of a job", setting)


def found_at(path: Path) -> str:
    """What is found at a path, in a word."""
    try:
        if path.exists():
            return FOLDER if path.is_dir() else FILE
        return "a link to nothing" if path.is_symlink() else "nothing"
    except PermissionError:
        return "nothing to be seen"
    except OSError:  # no such name can be
        return "nothing"


def write_document(path: Path, document: Any, setting: str) -> None:
    """Write JSON to the file that an argument names.

    Raises:
        BadJob: it cannot be written there.
        DiskFull: there is no space.
    """
    if found_at(path) == FOLDER:
        raise BadJob(f"{FOLDER} at {path}", expected="a file that can be written", setting=setting)
    try:
        write_json(path, document)
    except OSError as error:
        kind = DiskFull if is_disk_full(error) else BadJob
        found = f"cannot write {path}: {error.strerror}"
        raise kind(found, expected="a file that can be written", setting=setting) from None


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("found ''; expected a path")
    if any("\ud800" <= each <= "\udfff" for each in text):  # bytes that are no UTF-8, as Python keeps them
        raise argparse.ArgumentTypeError(f"found {text!a}; expected a path in UTF-8, since documents name it")
    return Path(text)


def path_or_url(text: str) -> Path | str:
    """The value of ``--job``."""
    if not text.startswith(("http://", "https://")):
        return _path(text)
    from urllib.parse import urlsplit

    try:
        host, _ = urlsplit(text).hostname, urlsplit(text).port
    except ValueError:
        host = None
    if not host:
        raise argparse.ArgumentTypeError("found no URL, though it begins like one; expected https://host/path")
    return text


def rank_count(text: str) -> int:
    """The value of ``--ranks``."""
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RANKS:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected a number from 1 to {MOST_RANKS}")
    return int(text)
