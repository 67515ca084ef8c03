"""Owns the command ``cache``: what the cache holds, whether it is sound, and what may go.

It must not know how it lies there.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app_trainer_sdk.arguments import Parser, existing_folder
from app_trainer_sdk.cache.folders import Folders
from app_trainer_sdk.cache.weights import Cache
from app_trainer_sdk.errors import ExitCode, TrainerError
from app_trainer_sdk.paths import cache_directory
from app_trainer_sdk.quantities import size_text

DAY_SECONDS = 86_400.0
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


@dataclass(frozen=True)
class Entry:
    """What can go by itself: a file of weights, or a folder.

    Attributes:
        kind: ``weights``, ``features`` (a phase's result), ``items`` (features of items) or ``compiled``.
        path: its path below the cache.
        sha256: the digest of a file of weights.
        size: bytes.
        used_at: when a job last asked for it, in seconds since the epoch.
        names: what a file of weights is called in the sets that have it.
        in_use: whether a running job holds it.
    """

    kind: str
    path: str
    sha256: str | None
    size: int
    used_at: float
    names: tuple[str, ...]
    in_use: bool


@dataclass(frozen=True)
class _Both:
    """All that lies in the cache."""

    weights: Cache
    folders: Folders

    def entries(self) -> list[Entry]:
        """What was used last comes first."""
        used = self.folders.in_use()
        root = self.weights.root
        files = [
            Entry(
                "weights", self.weights.file(each.sha256).relative_to(root).as_posix(), each.sha256, each.size,
                each.used_at, each.names, each.sha256 in used,
            )
            for each in self.weights.kept()
        ]  # fmt: skip
        folders = [
            Entry(each.kind, each.name, None, each.size, each.used_at, (), each.name in used)
            for each in self.folders.kept()
        ]
        return sorted(files + folders, key=lambda each: each.used_at, reverse=True)

    def remove(self, entry: Entry) -> bool:
        """Whether it is gone; what a running job holds stays."""
        if entry.sha256 is not None:
            return self.weights.remove(entry.sha256)
        return self.folders.remove(entry.path)

    def tidy(self) -> None:
        """Remove what is of no use since a part of it is gone."""
        self.weights.remove_broken_sets()
        self.folders.remove_without_items()


def main(arguments: Sequence[str] | None = None) -> int:
    """List, verify or prune; 0 when all is well."""
    parser = Parser(
        prog="app-trainer cache",
        description="List, verify and prune the cache: weights, results of phases, compiled kernels.",
    )
    parser.add_argument("what", nargs="?", choices=("list", "verify", "prune"), default="list")
    parser.add_argument("--cache-dir", type=Path, help="the cache (APP_TRAINER_CACHE_DIR)")
    parser.add_argument(
        "--max-size", type=_size, help="prune: what was not used for longest goes until so much is left (50G)"
    )
    parser.add_argument("--max-age-days", type=_days, help="prune: what no job asked for in so many days goes")
    parser.add_argument("--json", action="store_true", help="list: print JSON")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.cache_dir is not None:
            existing_folder(chosen.cache_dir, "a cache", "--cache-dir")
        root = chosen.cache_dir or cache_directory()
        both = _Both(Cache(root), Folders(root))
        return {"list": _list, "verify": _verify, "prune": _prune}[chosen.what](both, chosen)
    except TrainerError as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.code)


def _list(both: _Both, chosen: argparse.Namespace) -> int:
    entries = both.entries()
    if chosen.json:
        sys.stdout.write(json.dumps([vars(each) for each in entries], indent=2) + "\n")
        return int(ExitCode.SUCCEEDED)
    if entries:
        sys.stdout.write(f"{'kind':8}  {'size':>9}  {'unused for':>11}  {'':6}  what\n")
    for each in entries:
        days = (time.time() - each.used_at) / DAY_SECONDS
        what = each.path if each.sha256 is None else f"{each.sha256[:16]}  {', '.join(each.names) or '-'}"
        used = "in use" if each.in_use else ""
        sys.stdout.write(f"{each.kind:8}  {size_text(each.size):>9}  {days:6.1f} days  {used:6}  {what}\n")
    total = size_text(sum(each.size for each in entries))
    sys.stdout.write(f"{len(entries)} entries, {total} in {both.weights.root}\n")
    return int(ExitCode.SUCCEEDED)


def _verify(both: _Both, chosen: argparse.Namespace) -> int:
    """Read every file that has a digest; what is not what it was goes, so that the next job makes it again."""
    sound = wrong = 0
    for name, broken, remove in _files(both):
        sound, wrong = sound + (not broken), wrong + broken
        if broken:
            what = "removed" if remove() else "in use by a running job: run this again after it"
            sys.stdout.write(f"{name}  is not what it was; {what}\n")
    both.tidy()
    unknown = sum(each.kind in ("features", "compiled") for each in both.entries())
    said = f"; {unknown} folders have no digests" if unknown else ""
    sys.stdout.write(f"{sound} files are sound, {wrong} were not{said}\n")
    return int(ExitCode.BAD_DATA if wrong else ExitCode.SUCCEEDED)


def _files(both: _Both) -> Iterable[tuple[str, bool, Callable[[], bool]]]:
    """Each file that has a digest: its name, whether it is another, and what removes it."""
    for each in both.weights.kept():
        yield each.sha256, not both.weights.verify(each), partial(both.weights.remove, each.sha256)
    for path, broken in both.folders.damaged():
        name = path.relative_to(both.folders.root).as_posix()
        yield name, broken, partial(both.folders.remove_item, path)


def _prune(both: _Both, chosen: argparse.Namespace) -> int:
    freed, spared = 0, 0
    for each in _too_much(both.entries(), chosen.max_size, chosen.max_age_days):
        if both.remove(each):
            freed += each.size
        else:
            spared += 1
    age = DAY_SECONDS if chosen.max_age_days is None else chosen.max_age_days * DAY_SECONDS
    freed += both.weights.remove_leftovers(older_than=age) + both.folders.remove_leftovers(older_than=age)
    both.tidy()
    said = f"; {spared} stay: a running job uses them" if spared else ""
    sys.stdout.write(f"{size_text(freed)} freed{said}\n")
    return int(ExitCode.SUCCEEDED)


def _too_much(kept: Sequence[Entry], max_size: int | None, max_age_days: float | None) -> list[Entry]:
    """What goes: first what is too old, then what was not used for longest until the rest is small enough."""
    bound = float("-inf") if max_age_days is None else time.time() - max_age_days * DAY_SECONDS
    going, total = [], 0
    for each in kept:
        total += each.size
        if each.used_at < bound or (max_size is not None and total > max_size):
            going.append(each)
            total -= each.size
    return going


def _size(text: str) -> int:
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].lower() in "kmgt" and text else (text, "")
    try:
        size = int(float(number) * _UNITS[unit])
    except (ValueError, OverflowError):
        size = -1
    if size < 0:
        raise argparse.ArgumentTypeError(f"found {text!r}; expected bytes, or such as 500M, 50G, 2T")
    return size


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = -1.0
    if not 0 <= days < math.inf:  # a negative age would remove everything, and NaN nothing
        raise argparse.ArgumentTypeError(f"found {text!r}; expected days, 0 or more")
    return days


if __name__ == "__main__":
    sys.exit(main())
