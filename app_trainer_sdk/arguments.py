"""Owns what all commands have in common: one parser, and one answer to a path that is not what was meant.

A wrong request ends with 64, whichever command it was made of. This file must not know what a command does.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from app_trainer_sdk.errors import BadJob, ExitCode


class Parser(argparse.ArgumentParser):
    """argparse, with the exit code of a wrong request: its own 2 means nothing to a control plane."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and how the command is written."""
        self.exit(ExitCode.BAD_JOB, f"{self.prog}: {message}\n{self.format_usage()}")


def existing(path: Path, expected: str, setting: str) -> Path:
    """``path``, where there is something.

    Args:
        path: what was given.
        expected: what should be there, for the message.
        setting: the argument that gave it.

    Raises:
        BadJob: nothing is there.
    """
    if path.exists():
        return path
    raise BadJob(f"{_kind(path)} at {path}", expected=expected, setting=setting)


def existing_folder(path: Path, expected: str, setting: str) -> Path:
    """``path``, which is a folder.

    Raises:
        BadJob: nothing is there, or no folder.
    """
    if path.is_dir():
        return path
    raise BadJob(f"{_kind(path)} at {path}", expected=expected, setting=setting)


def existing_file(path: Path, expected: str, setting: str) -> Path:
    """``path``, which is something that can be read: a file, or a pipe.

    Raises:
        BadJob: nothing is there, or a folder.
    """
    if path.exists() and not path.is_dir():
        return path
    raise BadJob(f"{_kind(path)} at {path}", expected=expected, setting=setting)


def job_directory(path: Path, setting: str = "DIR") -> Path:
    """The directory of a job that was begun there, from the argument of a command that looks into it."""
    return existing_folder(path, "the directory of a job", setting)


def _kind(path: Path) -> str:
    """What is found at a path, in a word."""
    if path.is_dir():
        return "a folder"
    if path.exists():
        return "a file"
    return "a link to nothing" if path.is_symlink() else "nothing"
