"""Owns the command ``mirror``: a folder or a Hub revision in, the list of files that a job takes out.

It must not know how bytes travel, nor what a mirror is asked.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from app_trainer_sdk.arguments import Parser, existing_file, existing_folder, write_document
from app_trainer_sdk.cache.weights import Cache
from app_trainer_sdk.errors import BadJob, ExitCode, TrainerError
from app_trainer_sdk.hub import list_repository
from app_trainer_sdk.job import parse_document
from app_trainer_sdk.paths import cache_directory
from app_trainer_sdk.transfers.manifest import (
    Listed,
    check_mirrors,
    list_folder,
    manifest,
    read_manifest,
)
from app_trainer_sdk.transfers.progress import NO_LISTENER
from app_trainer_sdk.transfers.sets import cache_place, fetch_files
from app_trainer_sdk.transfers.tools import open_tools


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a list of files, or verify mirrors against one; 0 when all is well."""
    parser = Parser(
        prog="app-trainer mirror",
        description="Write the list of files that a job's weights take, or verify mirrors against one.",
    )
    parser.add_argument("source", help="a folder, REPO@REVISION on the Hub, or with --check a list of files")
    parser.add_argument(
        "--base-url", action="append", default=[], metavar="URL",
        help="where the files will lie; may be repeated, in the order of preference",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="write the list here instead of printing it")
    parser.add_argument(
        "--fetch", action="store_true", help="also fetch all files of a Hub revision, to copy them"
    )
    parser.add_argument("--check", action="store_true", help="verify each mirror: sizes, exact ranges, digests")
    parser.add_argument("--quick", action="store_true", help="with --check: sizes and ranges only")
    chosen = parser.parse_args(arguments)
    try:
        return _check(chosen) if chosen.check else _write(chosen)
    except TrainerError as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.code)


def _write(chosen: argparse.Namespace) -> int:
    if not chosen.base_url:
        raise BadJob("no place where the files will lie", expected="a URL", setting="--base-url")
    repository, at, revision = chosen.source.rpartition("@")
    if Path(chosen.source).is_dir() or not at:
        revision = ""
        expected = "a folder of weights, or REPO@REVISION"
        files = list_folder(existing_folder(Path(chosen.source), expected, "SOURCE"))
    else:
        files = _of_the_hub(repository, revision, fetch=chosen.fetch)
    document = manifest(files, chosen.base_url, revision=revision)
    if chosen.output is not None:
        write_document(chosen.output, document, "--output")
    else:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    return int(ExitCode.SUCCEEDED)


def _of_the_hub(repository: str, revision: str, *, fetch: bool) -> list[Listed]:
    """Files of a Hub revision. The Hub tells digests of large files; small ones are fetched to learn theirs."""
    listed = list_repository(repository, revision, setting="SOURCE")
    cache = Cache(cache_directory())
    wanted = [each for each in listed if fetch or each.sha256 is None or each.size is None]
    with open_tools() as tools:
        place = cache_place(cache)
        paths = fetch_files(wanted, place, label=repository, tools=tools, check=_never, told=NO_LISTENER)
    if fetch:
        folder = cache.write_set(
            f"mirror-{revision}", f"{repository}@{revision}", {n: p.name for n, p in paths.items()}
        )
        sys.stderr.write(f"the files to copy are in {folder} (links: copy what they point to)\n")
    found = []
    for each in listed:
        path = paths.get(each.path)
        size, sha256 = (each.size, each.sha256) if path is None else (path.stat().st_size, path.name)
        assert size is not None
        assert sha256 is not None
        found.append(Listed(each.path, size, sha256))
    return found


def _check(chosen: argparse.Namespace) -> int:
    expected = "with --check a list of files, as mirror writes it with --base-url"
    existing_file(Path(chosen.source), expected, "SOURCE")
    said = read_manifest(parse_document(Path(chosen.source), "SOURCE"))
    wrong = 0
    with open_tools() as tools:
        for each in check_mirrors(said, tools, digests=not chosen.quick):
            state = each.problem or "; ".join(("good", *each.notes))
            sys.stdout.write(f"{each.path}  {each.url}  {state}\n")
            wrong += bool(each.problem)
    return int(ExitCode.DEPENDENCY_UNAVAILABLE if wrong else ExitCode.SUCCEEDED)


def _never() -> None:
    """Ctrl-C ends a command by itself."""


if __name__ == "__main__":
    sys.exit(main())
