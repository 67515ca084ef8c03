"""Owns the cache of weights: files by their digest, and sets of them by name.

``weights/sha256/ab/<hex>`` are the files, shared by all sets and jobs. ``weights/sets/<key>/`` is a folder as
trainers expect it, of links to them, with ``<key>.json`` beside. A file is held by its digest. This file must
not know how files get here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from app_trainer_sdk.cache.leases import Leases, remove_unless
from app_trainer_sdk.files import read_json, remove_tree, sha256_file, write_json
from app_trainer_sdk.owner import is_owned, new_token


@dataclass(frozen=True)
class CachedFile:
    """One file of the cache.

    Attributes:
        sha256: its digest, which is its name.
        size: bytes.
        used_at: when a job last asked for it, in seconds since the epoch.
        names: what it is called in the sets that have it.
    """

    sha256: str
    size: int
    used_at: float
    names: tuple[str, ...] = ()


@final
class Cache:
    """The cache below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.partials = root / "partial"
        self._files = root / "weights" / "sha256"
        self._sets = root / "weights" / "sets"
        self._leases = Leases(root)

    def file(self, sha256: str) -> Path:
        """Where the file with this digest is, or will be."""
        return self._files / sha256[:2] / sha256

    def has(self, sha256: str, size: int | None) -> bool:
        """Whether it is there with its size; its digest was verified when it came."""
        try:
            found = self.file(sha256).stat()
        except OSError:
            return False
        return size is None or found.st_size == size

    def hold(self, digests: Iterable[str]) -> None:
        """Keep files from being removed until this process ends. Call it before looking for them."""
        held = set(digests)
        self._leases.take(held)
        now = time.time()
        for digest in held:
            with contextlib.suppress(OSError):
                file = self.file(digest)
                os.utime(file, (now, file.stat().st_mtime))  # the access time, also where disks keep none

    def read_set(self, key: str) -> Path | None:
        """The folder of a set when all of it is there; from then on it is held."""
        try:
            files: Mapping[str, Mapping[str, Any]] = read_json(self._sets / f"{key}.json")["files"]
            self.hold(each["sha256"] for each in files.values())
            whole = all(self.has(each["sha256"], each["size"]) for each in files.values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        folder = self._sets / key
        return folder if whole and all((folder / name).exists() for name in files) else None

    def knows(self, key: str) -> bool:
        """Whether a set was made once; its files may have been removed since."""
        return (self._sets / f"{key}.json").is_file()

    def write_set(self, key: str, title: str, files: Mapping[str, str]) -> Path:
        """Make the folder of a set from digests by name; all are in the cache."""
        folder = self._sets / key
        beside = self._sets / f".{key}.{new_token()}"
        for name, sha256 in files.items():
            link = beside / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(self.file(sha256), (folder / name).parent))
        sizes = {name: self.file(sha256).stat().st_size for name, sha256 in files.items()}
        try:
            beside.rename(folder)
        except OSError:  # it is there: of another process, or with files that had been removed since
            if not all((folder / name).exists() for name in files):
                remove_tree(folder)
                with contextlib.suppress(OSError):
                    beside.rename(folder)
            remove_tree(beside)
        told = {name: {"sha256": sha256, "size": sizes[name]} for name, sha256 in files.items()}
        write_json(self._sets / f"{key}.json", {"title": title, "files": told})
        return folder

    def digests(self, key: str) -> dict[str, str]:
        """SHA-256 of each file of a set."""
        return {name: each["sha256"] for name, each in read_json(self._sets / f"{key}.json")["files"].items()}

    def kept(self) -> list[CachedFile]:
        """Every file, the one that was used last first."""
        names = self._names()
        found = []
        for path in self._files.glob("??/*"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                found.append(
                    CachedFile(path.name, stat.st_size, stat.st_atime, tuple(names.get(path.name, ())))
                )
        return sorted(found, key=lambda each: each.used_at, reverse=True)

    def verify(self, kept: CachedFile) -> bool:
        """Whether a file still has its digest."""
        file = self.file(kept.sha256)
        before = file.stat()
        found = sha256_file(file)
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))  # looking at it is no use of it
        return found == kept.sha256

    def in_use(self) -> set[str]:
        """What living processes hold, digests among it."""
        return self._leases.taken()

    def remove(self, sha256: str) -> bool:
        """Remove a file unless somebody holds it; whether it is gone."""
        return remove_unless(lambda: sha256 in self.in_use(), self.file(sha256))

    def unfinished_bytes(self) -> int:
        """Bytes on the disk that sets which are not whole may have: files in no set, or in the making."""
        came = sum(each.size for each in self.kept() if not each.names)
        for data in self.partials.glob("*/data"):
            with contextlib.suppress(OSError):  # just finished
                came += data.stat().st_blocks * 512
        return came

    def remove_leftovers(self, *, older_than: float) -> int:
        """Remove files in the making that nobody works on since ``older_than`` seconds; bytes on the disk."""
        removed = 0
        for folder in self.partials.glob("*"):
            if folder.name.startswith("."):
                continue
            with contextlib.suppress(OSError):
                age = time.time() - max(each.stat().st_mtime for each in (folder, *folder.iterdir()))
                if age >= older_than and not is_owned(folder):
                    removed += sum(each.stat().st_blocks * 512 for each in folder.iterdir())
                    shutil.rmtree(folder)
        return removed

    def remove_broken_sets(self) -> None:
        """Remove the folders of sets of which a file is gone: links to nothing help nobody."""
        for path in self._sets.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                if not all(self.has(each["sha256"], None) for each in read_json(path)["files"].values()):
                    path.unlink()
                    remove_tree(path.with_suffix(""))

    def _names(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for path in self._sets.glob("*.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                document = read_json(path)
                for name, each in document["files"].items():
                    names.setdefault(each["sha256"], []).append(f"{document['title']}: {name}")
        return names


def set_key(*words: object) -> str:
    """The name of a set from what it is."""
    return hashlib.sha256(json.dumps(words, sort_keys=True).encode()).hexdigest()[:32]
