"""Owns the list of files that a mirror has: made of a folder or a Hub revision, verified against the mirror.

The list is what a job says under ``weights``: its files with size, SHA-256 and URLs. This file must not know
the command line.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import ValidationError

from app_trainer_sdk.errors import BadJob, InputMissing, TrainerError
from app_trainer_sdk.files import sha256_file
from app_trainer_sdk.job import WeightsReference
from app_trainer_sdk.names import unsafe_name
from app_trainer_sdk.redaction import shown_url
from app_trainer_sdk.transfers.answers import ask, check_part
from app_trainer_sdk.transfers.faults import Fault
from app_trainer_sdk.transfers.reading import pieces_of
from app_trainer_sdk.transfers.tools import Tools
from app_trainer_sdk.validation import explain


@dataclass(frozen=True)
class Listed:
    """One file of a mirror."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Checked:
    """What one mirror has of one file.

    Attributes:
        path: the file.
        url: the mirror, without its secrets.
        problem: what is wrong; empty when nothing is.
        notes: what works and could be better.
    """

    path: str
    url: str
    problem: str = ""
    notes: tuple[str, ...] = ()


def list_folder(folder: Path) -> list[Listed]:
    """Every file below a folder, hidden ones left out.

    Raises:
        InputMissing: there is none.
        BadJob: one has a name that a job could not take.
    """
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or any(part.startswith(".") for part in name.split("/")):
            continue
        if wrong := unsafe_name(name):
            raise BadJob(f"{name!r} is {wrong}", expected="relative names", setting=str(folder))
        found.append(Listed(name, path.stat().st_size, sha256_file(path)))
    if not found:
        raise InputMissing(f"no files in {folder}", expected="a folder of weights")
    return found


def manifest(files: Sequence[Listed], base_urls: Sequence[str], *, revision: str = "") -> dict[str, Any]:
    """What a job says under ``weights``.

    Args:
        files: what the mirrors have.
        base_urls: mirrors in the order of preference; a file lies at ``base/path``.
        revision: what identifies the content where something other than the digests does.
    """
    rows = [
        {
            "path": each.path, "size": each.size, "sha256": each.sha256,
            "urls": [f"{base.rstrip('/')}/{quote(each.path)}" for base in base_urls],
        }
        for each in files
    ]  # fmt: skip
    return {**({"revision": revision} if revision else {}), "files": rows}


def read_manifest(document: Any) -> WeightsReference:
    """A list of files as a job would read it.

    Raises:
        BadJob: with every problem.
    """
    try:
        said = WeightsReference.model_validate(document)
    except ValidationError as error:
        raise BadJob("this is not a list of files:", problems=explain(error, WeightsReference)) from None
    if not said.files:
        raise BadJob("no files in it", expected="files, as app-trainer mirror writes them")
    return said


def check_mirrors(said: WeightsReference, tools: Tools, *, digests: bool = True) -> Iterator[Checked]:
    """Ask every mirror for every file: size, exact ranges, and with ``digests`` every byte. Nothing is kept."""
    asked = [(file, url) for file in said.files or () for url in file.urls]

    def check(pair: tuple[Any, str]) -> Checked:
        file, url = pair
        try:
            notes = _check(file.model_dump(), url, tools, digests=digests)
        except (Fault, TrainerError) as error:
            return Checked(file.path, shown_url(url), str(error))
        return Checked(file.path, shown_url(url), notes=tuple(notes))

    with ThreadPoolExecutor(tools.patience.connections) as pool:
        yield from pool.map(check, asked)


def _check(file: Mapping[str, Any], url: str, tools: Tools, *, digests: bool) -> list[str]:
    facts = ask(tools.web, url)
    notes = [] if facts.etag is not None else ["no strong ETag: a changed file is noticed only by its digest"]
    if facts.size is None:
        raise Fault("it does not say how long the file is")
    if file["size"] is not None and facts.size != file["size"]:
        raise Fault(f"{facts.size} bytes, expected {file['size']}")
    if not facts.size:
        return notes
    _take(url, facts.size - 1, facts.size, facts.size, facts.etag, tools, len)  # ranges work, or it says so
    part, digest = tools.patience.part_of(facts.size), hashlib.sha256()
    for start in range(0, facts.size, part) if digests else ():
        _take(url, start, min(facts.size, start + part), facts.size, facts.etag, tools, digest.update)
    if digests and file["sha256"] is not None and digest.hexdigest() != file["sha256"]:
        raise Fault(f"the sha256 {digest.hexdigest()}, expected {file['sha256']}")
    return notes


def _take(
    url: str,
    start: int,
    end: int,
    size: int,
    etag: str | None,
    tools: Tools,
    take: Callable[[bytes | memoryview], object],
) -> None:
    headers = {"Range": f"bytes={start}-{end - 1}", **({"If-Match": etag} if etag else {})}
    with tools.web.open("GET", url, headers) as answer:
        check_part(answer, url, start, end, size, etag)
        received = 0
        for piece in pieces_of(answer, tools.patience.piece_bytes, tools.clock.now):
            received += len(piece)
            take(piece)
        if received != end - start:
            raise Fault(f"{shown_url(url)}: {received} bytes instead of {end - start}")
