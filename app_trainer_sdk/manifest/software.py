"""Owns what software is installed, told so that two machines can be compared: packages, source, revision.

Everything is read from files; nothing is imported. This file must not know runs.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from app_trainer_sdk.manifest.document import Code, Package
from app_trainer_sdk.paths import PREFIX

#: Written by the installer, and different from one installation to the next.
INSTALLERS_OWN = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json")
GIT_SECONDS = 5.0
SDK = Path(__file__).parent.parent


def installed_packages() -> dict[str, Package]:
    """Every installed distribution by its name, sorted."""
    found: dict[str, Package] = {}
    for each in importlib.metadata.distributions():
        name = str(each.metadata["Name"]).lower().replace("_", "-")
        found.setdefault(name, Package(version=each.version, digest=_record_digest(each)))
    return dict(sorted(found.items()))


def describe_code(trainer: str, module: str, version: str | None, environment: Mapping[str, str]) -> Code:
    """What code this is.

    Args:
        trainer: the trainer's name in the job.
        module: the module its class is in.
        version: the trainer's own version.
        environment: where an image tells its revision and a platform its digest.
    """
    revision, changed = environment.get(PREFIX + "REVISION") or None, None
    if revision is None:
        revision, changed = _git(SDK)
    return Code(
        revision=revision, changed=changed, image_digest=environment.get(PREFIX + "IMAGE_DIGEST") or None,
        trainer=trainer, trainer_version=version, trainer_digest=_module_digest(module),
        sdk_digest=source_digest(SDK),
    )  # fmt: skip


def source_digest(place: Path) -> str:
    """Digest of a Python file, or of all below a folder, by name and content."""
    files = [place] if place.is_file() else sorted(place.rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(place.parent).as_posix().encode() + b"\0")
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return "sha256:" + digest.hexdigest()


def _module_digest(module: str) -> str | None:
    """The folder a module lies in, or the module alone when that is no package."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin)
    return source_digest(file.parent if "." in module else file)


def _record_digest(distribution: importlib.metadata.Distribution) -> str | None:
    record = distribution.read_text("RECORD")
    if record is None:
        return None
    digest = hashlib.sha256()
    for line in sorted(_lines(record)):
        digest.update(line.encode() + b"\n")
    return "sha256:" + digest.hexdigest()


def _lines(record: str) -> Iterator[str]:
    """Files of the wheel with their digests; scripts carry the interpreter's path and are left out."""
    for row in csv.reader(record.splitlines()):
        if len(row) < 2 or not row[1] or row[0].startswith("..") or Path(row[0]).is_absolute():
            continue
        if ".dist-info/" in row[0] and row[0].rpartition("/")[2] in INSTALLERS_OWN:
            continue
        yield f"{row[0]},{row[1]}"


def _git(folder: Path) -> tuple[str | None, bool | None]:
    """Commit of the checkout that a folder is part of, and whether its files differ from it."""
    if not any((parent / ".git").exists() for parent in folder.parents):
        return None, None
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None, None
    status = _ask_git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    return commit, None if status is None else bool(status)


def _ask_git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=GIT_SECONDS,  # noqa: S607
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
