"""Owns the command ``new``: a working trainer package from the templates, under the author's own name.

The template is real code that the tests train; making a package is replacing its three names. This file must
not know what the template does.
"""

from __future__ import annotations

import importlib.util
import keyword
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

from app_trainer_sdk.arguments import Parser
from app_trainer_sdk.errors import BadJob, TrainerError
from app_trainer_sdk.registry import GROUP

TEMPLATE = Path(__file__).with_name("templates") / "trainer"
NAME = re.compile(r"[a-z](?:[a-z0-9_-]{0,61}[a-z0-9])?")  # a distribution's name ends like this too


@dataclass(frozen=True)
class Names:
    """The three names of a trainer package.

    Attributes:
        trainer: the word a job uses, also the distribution's name and the folder's.
        package: what python imports.
        title: the class's name without ``Trainer``.
    """

    trainer: str
    package: str
    title: str

    @classmethod
    def of(cls, name: str) -> Names:
        """The names that follow from the one an author chose.

        Raises:
            BadJob: no package can be called that.
        """
        package = name.replace("-", "_")
        problem = _problem(name, package)
        if problem:
            raise BadJob(
                f"the name {name!r} {problem}", setting="NAME",
                expected="lower-case letters, digits, '-' and '_' inside, a letter first, such as my-trainer",
            )  # fmt: skip
        words = [word for word in package.split("_") if word]
        title = "".join(word.capitalize() for word in words)
        return cls(name, package, title.removesuffix("Trainer") or title)


#: What stands in the templates.
EXAMPLE = Names("example-digits", "example_digits", "ExampleDigits")


def write_package(name: str, directory: Path) -> Path:
    """Write the package ``name`` below ``directory``; it appears whole or not at all.

    Returns:
        its folder.

    Raises:
        BadJob: a name that cannot be, or something is there already.
    """
    names = Names.of(name)
    folder = directory / name
    if folder.exists() or folder.is_symlink():
        raise BadJob(
            f"{folder} exists already", expected="a folder that does not", setting="NAME or --directory"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        beside = directory / f".{name}.{os.getpid()}.tmp"
        try:
            _fill(beside, names)
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise BadJob(
            f"{folder} cannot be written: {error.strerror or error}", expected="a folder one may write to",
            setting="--directory",
        ) from error  # fmt: skip
    return folder


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a package and say what to do with it."""
    parser = Parser(prog="app-trainer new", description="Write a working trainer package to start from.")
    parser.add_argument("name", metavar="NAME", help="the trainer's name, such as my-trainer")
    parser.add_argument("--directory", type=Path, default=Path(), help="where to write its folder (here)")
    chosen = parser.parse_args(arguments)
    try:
        folder = write_package(chosen.name, chosen.directory)
    except TrainerError as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.code)
    sys.stdout.write(_next_steps(folder, Names.of(chosen.name)))
    return 0


def _problem(name: str, package: str) -> str:
    """Why no package can have this name, or nothing."""
    if not NAME.fullmatch(name) or not package.isidentifier():
        return "is no package name"
    if keyword.iskeyword(package):
        return "is a word of python itself"
    if entry_points(group=GROUP, name=name):
        return "is that of a trainer that is installed"
    if package in sys.stdlib_module_names or package == "tests" or _is_installed(package):
        return f"would hide the package {package} that is there already"
    return ""


def _is_installed(package: str) -> bool:
    """Whether python finds such a package; a mere folder of that name does not count."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    return found is not None and found.origin is not None


def _fill(folder: Path, names: Names) -> None:
    for source in sorted(TEMPLATE.rglob("*")):
        if not source.is_file() or "__pycache__" in source.parts:
            continue
        place = folder / _renamed(source.relative_to(TEMPLATE).as_posix(), names)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_renamed(source.read_text(encoding="utf-8"), names), encoding="utf-8")


def _renamed(text: str, names: Names) -> str:
    for old, new in zip(vars(EXAMPLE).values(), vars(names).values(), strict=True):
        text = text.replace(old, new)
    return text


def _next_steps(folder: Path, names: Names) -> str:
    reference = f"{names.package}.trainer:{names.title}Trainer"
    lines = [
        f"wrote {folder}: a trainer that works as it is", "",
        f"  cd {folder}",
        "  app-trainer run --job job.json --job-dir out",
        f"  app-trainer check {reference}", "",
        f"then make {names.package}/trainer.py yours; README.md says in which order",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
