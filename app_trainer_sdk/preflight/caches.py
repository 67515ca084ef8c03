"""Owns where libraries keep what they make: each folder named by its variable and probed for writing.

A container's user may have no home, and its root may be read-only; libraries then fail late and in their own
words. It happens before torch is imported. This file must not know what the libraries keep there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from app_trainer_sdk.preflight.findings import Finding

#: Variable: its folder below the cache, and where the library would look by itself when that is kept, given the
#: variables before it. The order matters.
FOLDERS: dict[str, tuple[str, str]] = {
    "HOME": ("home", "~"),
    "TMPDIR": ("tmp", "/tmp"),  # noqa: S108 - the system's own
    "XDG_CACHE_HOME": ("xdg", "{HOME}/.cache"),
    "HF_HOME": ("huggingface", "{XDG_CACHE_HOME}/huggingface"),
    "TORCHINDUCTOR_CACHE_DIR": ("compile", ""),
    "TRITON_CACHE_DIR": ("triton", ""),
    "CUDA_CACHE_PATH": ("cuda", ""),
    "MPLCONFIGDIR": ("matplotlib", ""),
    "NUMBA_CACHE_DIR": ("numba", ""),
}
#: What is compiled there is loaded as a library.
EXECUTED = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")


@dataclass
class Settled:
    """Variables to set, by name, and what was found."""

    variables: dict[str, str] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def settle_caches(environment: Mapping[str, str], cache: Path) -> Settled:
    """Where each folder will be: as the variable says, as the library would, else below ``cache``.

    A variable that names a folder nothing can be written in is replaced, and that is told: what was asked for,
    what is used, why.
    """
    settled = Settled()
    known: dict[str, str] = {}
    if broken := problem_of(cache):
        helps = "another APP_TRAINER_CACHE_DIR, or a volume that user and group may write"
        found = f"nothing can be written in {cache}: {broken}"
        settled.findings.append(
            Finding("cache folder", "failed", found, "a writable folder", helps, setting=True)
        )
    for name, (folder, usual) in FOLDERS.items():
        asked = environment.get(name, "")
        own = str(cache / folder)
        places = list(dict.fromkeys(filter(None, (asked, _usual(usual, known) if not asked else "", own))))
        problems = {place: problem for place in places if (problem := problem_of(Path(place)))}
        chosen = next((place for place in places if place not in problems), "")
        known[name] = chosen or own
        if not chosen and broken:
            continue  # told already: one variable mends them all
        if not chosen:
            told = "; ".join(f"{place}: {problem}" for place, problem in problems.items())
            helps = f"a writable {name} or APP_TRAINER_CACHE_DIR"
            settled.findings.append(Finding("caches", "failed", told, f"a folder for {name}", helps))
            continue
        if chosen != asked:
            settled.variables[name] = chosen
        if asked and chosen != asked:
            found = f"{name}={asked}: {problems[asked]}; {chosen} is used"
            settled.findings.append(Finding("caches", "warning", found, "a folder that can be written"))
        if name in EXECUTED and _is_noexec(Path(chosen)):
            found = f"{name}={chosen} is mounted noexec: torch.compile cannot load what it makes"
            settled.findings.append(Finding("caches", "warning", found, "", "another folder"))
    if not settled.findings:
        settled.findings.append(Finding("caches", "ok", f"{len(FOLDERS)} folders can be written"))
    return settled


def problem_of(folder: Path) -> str:
    """Why nothing can be written in ``folder``; empty when a file was. The folder is made."""
    probe = folder / f".probe-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(os.fdopen(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY), "wb")) as file:
            file.write(b"\0")
    except FileExistsError:
        return "Not a directory"
    except OSError as error:
        return error.strerror or type(error).__name__
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
    return ""


def _usual(place: str, known: Mapping[str, str]) -> str:
    if place == "~":
        try:
            return str(Path.home())
        except RuntimeError:  # a user whom the system does not know
            return ""
    return place.format(**known)


def _is_noexec(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & os.ST_NOEXEC)
