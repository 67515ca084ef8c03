"""Owns what software is installed, told so that two machines can be compared: packages, source, revision.

Everything is read from files; nothing is imported. This file must not know runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from app_trainer_sdk.manifest.document import Code, Package
from app_trainer_sdk.paths import PREFIX

#: Written by the installer, and different from one installation to the next.
INSTALLERS_OWN = ("INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json")
GIT_SECONDS = 5.0
SDK = Path(__file__).parent.parent


def installed_packages(places: Sequence[str] | None = None) -> dict[str, Package]:
    """Every installed distribution by its name, sorted; where one is installed twice, the one that is imported.

    Folders are read as they are named, since reading all metadata takes five times as long.

    Args:
        places: folders to look in; those of this interpreter when not given.
    """
    found: dict[str, Package] = {}
    for place in map(Path, sys.path if places is None else places):
        for folder in sorted(place.glob("*.dist-info")):
            name, _, version = folder.name.removesuffix(".dist-info").partition("-")
            plain = re.sub(r"[-_.]+", "-", name).lower()
            found.setdefault(plain, Package(version=version, digest=_record_digest(folder)))
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


def _record_digest(folder: Path) -> str | None:
    """Over the lines of the files that came with the wheel: name, digest, size."""
    try:
        record = (folder / "RECORD").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    own = tuple(f"{folder.name}/{name}," for name in INSTALLERS_OWN)
    # Compiled files have no digest; scripts, outside the folder, carry the interpreter's path.
    lines = [
        line for line in record.splitlines()
        if ",sha256=" in line and not line.startswith(("..", "/", '"..', '"/', *own))
    ]  # fmt: skip
    return "sha256:" + hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


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
