"""Owns the command ``cache``: what the cache of weights holds, whether it is sound, and what may go."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from app_trainer_sdk.arguments import Parser, existing_folder
from app_trainer_sdk.errors import ExitCode, TrainerError
from app_trainer_sdk.paths import cache_directory
from app_trainer_sdk.transfers.cache import Cache, CachedFile
from app_trainer_sdk.transfers.progress import size_text

DAY_SECONDS = 86_400.0
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def main(arguments: Sequence[str] | None = None) -> int:
    """List, verify or prune; 0 when all is well."""
    parser = Parser(prog="app-trainer cache", description="List, verify and prune the cache of weights.")
    parser.add_argument("what", nargs="?", choices=("list", "verify", "prune"), default="list")
    parser.add_argument("--cache-dir", type=Path, help="the cache (APP_TRAINER_CACHE_DIR)")
    parser.add_argument(
        "--max-size", type=_size, help="prune: least recently used files go until so much is left (50G)"
    )
    parser.add_argument(
        "--max-age-days", type=float, help="prune: files go that no job asked for in so many days"
    )
    parser.add_argument("--json", action="store_true", help="list: print JSON")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.cache_dir is not None:
            existing_folder(chosen.cache_dir, "a cache of weights", "--cache-dir")
        cache = Cache(chosen.cache_dir or cache_directory())
        return {"list": _list, "verify": _verify, "prune": _prune}[chosen.what](cache, chosen)
    except TrainerError as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.code)


def _list(cache: Cache, chosen: argparse.Namespace) -> int:
    kept, used = cache.kept(), cache.in_use()
    if chosen.json:
        rows = [{**vars(each), "names": list(each.names), "in_use": each.sha256 in used} for each in kept]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return int(ExitCode.SUCCEEDED)
    for each in kept:
        days = (time.time() - each.used_at) / DAY_SECONDS
        words = [
            each.sha256[:16],
            f"{size_text(each.size):>9}",
            f"{days:6.1f} days",
            ", ".join(each.names) or "-",
        ]
        sys.stdout.write("  ".join(words) + ("  in use" if each.sha256 in used else "") + "\n")
    sys.stdout.write(f"{len(kept)} files, {size_text(sum(each.size for each in kept))} in {cache.root}\n")
    return int(ExitCode.SUCCEEDED)


def _verify(cache: Cache, chosen: argparse.Namespace) -> int:
    """Read every file; what does not have its digest goes, so that the next job fetches it again."""
    wrong = [each for each in cache.kept() if not cache.verify(each)]
    for each in wrong:
        gone = cache.remove(each.sha256)
        what = "removed" if gone else "in use by a running job: run this again after it"
        sys.stdout.write(f"{each.sha256}  is not what its name says; {what}\n")
    cache.remove_broken_sets()
    sys.stdout.write(f"{len(cache.kept())} files are sound, {len(wrong)} were not\n")
    return int(ExitCode.BAD_DATA if wrong else ExitCode.SUCCEEDED)


def _prune(cache: Cache, chosen: argparse.Namespace) -> int:
    freed, spared = 0, 0
    for each in _too_much(cache.kept(), chosen.max_size, chosen.max_age_days):
        if cache.remove(each.sha256):
            freed += each.size
        else:
            spared += 1
    age = DAY_SECONDS if chosen.max_age_days is None else chosen.max_age_days * DAY_SECONDS
    freed += cache.remove_leftovers(older_than=age)
    cache.remove_broken_sets()
    said = f"; {spared} stay: a running job uses them" if spared else ""
    sys.stdout.write(f"{size_text(freed)} freed{said}\n")
    return int(ExitCode.SUCCEEDED)


def _too_much(kept: Sequence[CachedFile], max_size: int | None, max_age_days: float | None) -> list[CachedFile]:
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
        return int(float(number) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        raise argparse.ArgumentTypeError(f"found {text!r}; expected bytes, or such as 500M, 50G, 2T") from None


if __name__ == "__main__":
    sys.exit(main())
