"""Owns making a job's inputs local: paths and ``file:`` URLs in place, all else by download into its directory.

Torch-free: the supervisor calls it. Weights, which jobs share, are fetched by ``weights.py``. This file
must not know what the files mean.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from app_trainer_sdk.errors import BadJob, InputMissing
from app_trainer_sdk.files import remove_tree, sha256_file
from app_trainer_sdk.job import FileReference, Job
from app_trainer_sdk.transfers.download import Check, Destination
from app_trainer_sdk.transfers.progress import NO_LISTENER, ProgressListener
from app_trainer_sdk.transfers.sets import fetch_files
from app_trainer_sdk.transfers.tools import Tools, open_tools
from app_trainer_sdk.transfers.wanted import Wanted

NAME_BYTES = 128


def fetch_inputs(
    job: Job, directory: Path, check: Check, *, told: ProgressListener = NO_LISTENER, reserve: int = 0
) -> dict[str, Path]:
    """Local path of each input; of an archive it is the folder it became.

    Args:
        job: the job.
        directory: where downloads go.
        check: raises when somebody wants to stop.
        told: hears how far it is.
        reserve: bytes to leave on that disk for what the run will write.
    """
    paths = {}
    with open_tools() as tools:
        for name, reference in job.inputs.items():
            paths[name] = fetch(
                reference, directory / name, setting=f"/inputs/{name}", check=check, told=told, tools=tools,
                reserve=reserve,
            )  # fmt: skip
    return paths


def fetch(
    reference: FileReference, directory: Path, *, setting: str, check: Check, tools: Tools,
    told: ProgressListener = NO_LISTENER, reserve: int = 0,
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
        path = _downloaded(reference, directory, setting, check, told, tools, reserve)
    else:
        path = in_place(reference, setting, check)
    if reference.kind is None:
        return path
    if path.is_dir():
        raise BadJob(f"{path} is a folder", expected=f"a {reference.kind} archive", setting=setting)
    from app_trainer_sdk.transfers.archives import Limits, unpack  # and every kind of compression with it

    limits = Limits() if reference.limits is None else Limits(**reference.limits.model_dump())
    return unpack(path, directory, kind=reference.kind, limits=limits, check=check, setting=setting)


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


def in_place(reference: FileReference, setting: str, check: Check) -> Path:
    """A local file or folder, verified as far as the job says anything of it."""
    path = local_path(reference.url, setting)
    if not os.access(path, os.F_OK):  # also for a name that is too long to be one
        raise InputMissing(f"nothing at {path}", expected="a readable file or folder", setting=setting)
    if not os.access(path, os.R_OK):
        raise InputMissing(f"{path} cannot be read", expected="a readable file or folder", setting=setting)
    if path.is_dir() and (reference.size is not None or reference.sha256 is not None):
        raise BadJob(
            f"{path} is a folder, and size and sha256 describe one file", expected="a file, or neither",
            setting=setting,
        )  # fmt: skip
    if wrong := _mismatch(reference, path, check):
        raise BadJob(f"{path.name} has {wrong[0]}", expected=wrong[1], setting=f"{setting}/{wrong[2]}")
    return path


def _downloaded(
    reference: FileReference, directory: Path, setting: str, check: Check, told: ProgressListener, tools: Tools,
    reserve: int,
) -> Path:  # fmt: skip
    """An input under the name that its URL gives it, in the job's own directory: jobs share no inputs."""
    path = directory / file_name(reference.url)
    if path.exists():
        if not _mismatch(reference, path, check):
            return path
        path.unlink()
    wanted = Wanted(
        path.name, (reference.url,), size=reference.size, sha256=reference.sha256, setting=setting,
        in_job=True,
    )  # fmt: skip
    place = Destination(directory / ".partial", lambda sha256: path)
    label = setting.removeprefix("/")
    fetch_files([wanted], place, label=label, tools=tools, check=check, told=told, reserve=reserve)
    remove_tree(place.partials)  # a kill at the last moment may have left an empty claim
    return path


def file_name(url: str) -> str:
    """The last part of a URL's path as a file name that stays where it is put."""
    name = (
        Path(unquote(urlsplit(url).path)).name.replace("\0", "").encode()[-NAME_BYTES:].decode(errors="ignore")
    )
    return name if name not in ("", ".", "..", ".partial") else "input"


def _mismatch(reference: FileReference, path: Path, check: Check) -> tuple[str, str, str] | None:
    """What differs from what the job says of a file: found, expected, and its key."""
    size = path.stat().st_size
    if reference.size is not None and size != reference.size:
        return f"{size} bytes", f"{reference.size} bytes", "size"
    if reference.sha256 is not None and (digest := sha256_file(path, check)) != reference.sha256:
        return f"the sha256 {digest}", reference.sha256, "sha256"
    return None
