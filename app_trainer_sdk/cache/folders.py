"""Owns what is used and removed as whole folders: results of phases, features of items, compiled kernels.

A folder's time of change is when it was last used. This file must not know what is in one.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from app_trainer_sdk.cache.features import FOLDER, ITEMS, SUFFIX, is_whole, items_of
from app_trainer_sdk.cache.leases import LEASE_SECONDS, Leases, remove_unless
from app_trainer_sdk.files import remove_tree

#: Where kernels are compiled to, unless variables of their own say otherwise.
COMPILED = ("compile", "triton", "cuda", "numba")


@dataclass(frozen=True)
class CachedFolder:
    """One folder of the cache.

    Attributes:
        kind: ``features`` (a phase's result), ``items`` (features of items) or ``compiled``.
        name: its path below the cache.
        size: bytes of its files.
        used_at: when a job last asked for it, in seconds since the epoch.
    """

    kind: str
    name: str
    size: int
    used_at: float


@final
class Folders:
    """The folders of the cache below one root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._leases = Leases(root)

    def hold(self, *folders: Path) -> None:
        """Keep folders from being removed until this process ends. Call it before looking for them."""
        self._leases.take(self._name(each) for each in folders)
        for folder in folders:
            with contextlib.suppress(OSError):
                os.utime(folder)

    def hold_result(self, result: Path) -> None:
        """Keep a phase's result, and the features that it uses."""
        self.hold(result)
        if (items := items_of(self.root, result)) is not None:
            self.hold(items)

    def hold_compiled(self) -> None:
        """Keep the compiled kernels that are there, and those to come."""
        self.hold(*(self.root / name for name in COMPILED))

    def kept(self) -> list[CachedFolder]:
        """Every folder."""
        found = []
        for kind, folder in self._all():
            with contextlib.suppress(OSError):
                used_at = folder.stat().st_mtime
                found.append(CachedFolder(kind, self._name(folder), _size(folder), used_at))
        return found

    def in_use(self) -> set[str]:
        """What living processes hold, names of folders among it.

        With a result its items are held: a phase's own process holds them, and ends before the rank reads.
        """
        held = self._leases.taken()
        used = (items_of(self.root, self.root / name) for name in held)
        return held | {self._name(items) for items in used if items is not None}

    def remove(self, name: str) -> bool:
        """Remove a folder unless somebody holds it; whether it is gone."""
        return remove_unless(lambda: name in self.in_use(), self.root / name)

    def damaged(self) -> Iterator[tuple[Path, bool]]:
        """Each file of features with whether its bytes are not those that were written."""
        for kind, folder in self._all():
            if kind == "items":
                for path in sorted(folder.glob(f"[!.]*{SUFFIX}")):
                    yield path, not is_whole(path)

    def remove_item(self, path: Path) -> bool:
        """Remove one file of features unless somebody holds its folder; whether it is gone."""
        return remove_unless(lambda: self._name(path.parent) in self.in_use(), path)

    def remove_without_items(self) -> None:
        """Remove results whose items are gone: the next job makes both again."""
        for kind, folder in self._all():
            items = items_of(self.root, folder) if kind == "features" else None
            if items is not None and not items.exists():
                self.remove(self._name(folder))

    def remove_leftovers(self, *, older_than: float) -> int:
        """Remove what was being made or removed by a process that died; bytes freed."""
        before, held, freed = time.time() - max(older_than, LEASE_SECONDS), self.in_use(), 0
        parents = (self.root, self.root / FOLDER, self.root / FOLDER / ITEMS)
        for path in (each for parent in parents for each in parent.glob(".*.tmp")):
            made = path.with_name(path.name[1:].rsplit(".", 2)[0])
            with contextlib.suppress(OSError):
                ours = made.parent != self.root or made.name in COMPILED
                if ours and self._name(made) not in held and path.stat().st_ctime < before:
                    freed += _size(path)
                    remove_tree(path)
        return freed

    def _all(self) -> Iterator[tuple[str, Path]]:
        features = self.root / FOLDER
        for kind, parent in (("features", features), ("items", features / ITEMS)):
            for folder in sorted(parent.glob("[!.]*")):
                if folder.is_dir() and folder != features / ITEMS:
                    yield kind, folder
        for name in COMPILED:
            if (self.root / name).is_dir():
                yield "compiled", self.root / name

    def _name(self, folder: Path) -> str:
        return folder.relative_to(self.root).as_posix()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total
