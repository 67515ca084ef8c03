"""Owns the command ``check``: which trainer, with which job, and one line for each promise.

It must not know any promise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app_trainer_sdk.arguments import Parser, existing
from app_trainer_sdk.claim import make_folder
from app_trainer_sdk.errors import BadJob, ExitCode, TrainerError
from app_trainer_sdk.inputs import local_path
from app_trainer_sdk.testing.conformance import PROMISES, check_trainer
from app_trainer_sdk.testing.subject import Asked
from app_trainer_sdk.testing.verdict import Result


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a trainer: 0 when every promise is kept, 70 when one is broken, 64 for what cannot be checked."""
    chosen = _parser().parse_args(arguments)
    if chosen.list:
        sys.stdout.write("".join(f"{each.name}\n    {each.meaning}\n" for each in PROMISES))
        return 0
    try:
        return _check(chosen)
    except BadJob as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.code)


def _check(chosen: argparse.Namespace) -> int:
    if not chosen.trainer:
        raise BadJob("no trainer", expected="a trainer's name or package.module:Class", setting="TRAINER")
    asked = Asked(
        chosen.trainer, chosen.model, chosen.method, _pairs(chosen.input, "--input"),
        {name: _value(text) for name, text in _pairs(chosen.set, "--set").items()},
    )  # fmt: skip
    _refuse_wrong_wishes(asked)
    if chosen.keep is not None:
        make_folder(chosen.keep, setting="--keep")
    results: list[Result] = []
    for result in check_trainer(asked, only=chosen.only, folder=chosen.keep):
        sys.stdout.write(result.line() + "\n")
        sys.stdout.flush()
        results.append(result)
    sys.stdout.write(_summary(results) + "\n")
    return 0 if all(each.passed for each in results) else int(ExitCode.INTERNAL_ERROR)


def _refuse_wrong_wishes(asked: Asked) -> None:
    """A model, input or setting that does not exist is the caller's mistake, not a broken promise."""
    try:
        for name, reference in asked.job().inputs.items():
            if urlsplit(reference.url).scheme not in ("http", "https"):
                path, setting = local_path(reference.url, name), f"--input {name}=PATH"
                existing(path, "a file or folder", setting)
    except BadJob as error:
        problems = [replace(each, pointer=_option(each.pointer)) for each in error.problems]
        raise BadJob(error.found, expected=error.expected, setting=error.setting, problems=problems) from None
    except (TrainerError, TypeError):
        return  # the trainer's own fault: the first promise tells it


def _option(pointer: str) -> str:
    """The option of this command that says what ``pointer`` names in a job."""
    part, _, name = pointer.removeprefix("/").partition("/")
    if part in ("inputs", "hyperparameters"):
        return f"--input {name}=PATH" if part == "inputs" else f"--set {name}=VALUE"
    return f"--{part}" if part in ("model", "method") else pointer


def _summary(results: Sequence[Result]) -> str:
    count = {status: sum(each.status == status for each in results) for status in ("pass", "fail", "skip")}
    seconds = sum(each.seconds for each in results)
    return f"{count['pass']} kept, {count['fail']} broken, {count['skip']} skipped in {seconds:.0f} s"


def _pairs(given: Sequence[str], option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise BadJob(f"{option} {each}", expected=f"{option} name=value", setting=option)
        pairs[name] = value
    return pairs


def _value(text: str) -> Any:
    """A setting's value as JSON; what is no JSON is a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _parser() -> Parser:
    parser = Parser(
        prog="app-trainer check",
        description="Prove that a trainer keeps the contract: one line for each promise.",
    )
    parser.add_argument(
        "trainer", metavar="TRAINER", nargs="?", help="a trainer's name, or package.module:Class"
    )
    parser.add_argument("--model", help="a model of its catalog (the first)")
    parser.add_argument("--method", help="one of its methods (the first)")
    parser.add_argument(
        "--input", action="append", default=[], metavar="NAME=PATH", help="an input of the job; may be repeated"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a hyperparameter; may be repeated"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="PROMISE", help="judge this promise; may be repeated"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the jobs here and keep them")
    parser.add_argument("--list", action="store_true", help="list the promises and what they mean")
    return parser


if __name__ == "__main__":
    sys.exit(main())
