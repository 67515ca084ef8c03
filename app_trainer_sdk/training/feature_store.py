"""Owns features on disk: what a frozen extractor made of each item, one safetensors file an item.

A file is found by a digest of the extractor's weights, the preprocessing, the item and the format of the
store, so features of another extractor are never taken for these. It appears whole by one rename and carries a
seal. Which files make up a finished phase stands in an index that lies in the phase's own directory and
is there only when all of them are. This file must not know what an item is or how features are made.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from app_trainer_sdk.cache.features import INDEX, SEAL, SUFFIX, UNSEALED, is_whole, items_folder, seal
from app_trainer_sdk.cache.folders import Folders
from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.files import read_json, remove_tree, write_json
from app_trainer_sdk.handle import Run
from app_trainer_sdk.values import JSON

#: Raise it when files of an earlier version must not be read.
FORMAT = 2
Item = TypeVar("Item")


@final
class FeatureStore:
    """Where features of one extractor lie, shared by all jobs with the same cache.

    Args:
        run: the handle.
        name: for people, such as ``latents``.
        extractor: the frozen module, which is put into evaluation mode with gradients off, or any text that
            identifies its weights.
        preprocessing: everything else the features depend on, such as the size of a picture.
    """

    def __init__(
        self,
        run: Run,
        name: str,
        *,
        extractor: nn.Module | str,
        preprocessing: Mapping[str, JSON] | None = None,
    ) -> None:
        self._run = run
        self._name = name
        self._module = freeze(extractor) if isinstance(extractor, nn.Module) else None
        weights = weights_digest(extractor) if isinstance(extractor, nn.Module) else extractor
        parts = {"weights": weights, "preprocessing": dict(preprocessing or {}), "format": FORMAT}
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
        self.folder = items_folder(run.cache, f"{name}-{digest}")

    def fill(
        self,
        directory: Path,
        items: Iterable[tuple[str, Item]],
        extract: Callable[[Sequence[Item]], Sequence[Mapping[str, Tensor]]],
        *,
        at_once: int = 1,
    ) -> Mapping[str, JSON]:
        """Make the features that are not there, or are damaged, and write the index of all.

        Args:
            directory: the phase's own.
            items: pairs of what identifies an item (a digest of its content) and the item, in the order in
                which :class:`Features` will give them.
            extract: features of several items, by name; called without gradients.
            at_once: most items in one call.

        Returns:
            facts: items, and how many of them were computed, reused, and computed again since damaged.

        Raises:
            InternalError: the extractor changed while it worked, or gave another number of features.
        """
        Folders(self._run.cache).hold(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        names: list[str] = []
        counts = {"items": 0, "computed": 0, "reused": 0, "damaged": 0}
        before = _versions(self._module)
        with torch.no_grad():
            for some in _batches(self._missing(items, names, counts), at_once):
                self._make(some, extract)
                counts["computed"] += len(some)
        if _versions(self._module) != before:
            raise InternalError(
                f"the extractor of {self._name} changed while it worked", expected="frozen weights and buffers",
                setting="batch norm to evaluation mode",
            )  # fmt: skip
        counts["items"] = len(names)
        where = self.folder.relative_to(self._run.cache).as_posix()
        write_json(directory / INDEX, {"format": FORMAT, "folder": where, "files": names})
        return counts

    def _missing(
        self, items: Iterable[tuple[str, Item]], names: list[str], counts: dict[str, int]
    ) -> Iterator[tuple[Path, Item]]:
        taken: set[str] = set()
        for key, item in self._run.track(items, f"extract {self._name}"):
            name = hashlib.sha256(key.encode()).hexdigest()[:40] + SUFFIX
            names.append(name)
            path = self.folder / name
            if name in taken or is_whole(path):
                counts["reused"] += 1
                continue
            taken.add(name)
            counts["damaged"] += path.exists()
            yield path, item

    def _make(
        self,
        some: Sequence[tuple[Path, Item]],
        extract: Callable[[Sequence[Item]], Sequence[Mapping[str, Tensor]]],
    ) -> None:
        features = extract([item for _, item in some])
        if len(features) != len(some):
            raise InternalError(f"extract gave {len(features)} features", expected=f"{len(some)}")
        for (path, _), tensors in zip(some, features, strict=True):
            _write(path, tensors)


@final
class Features:
    """What a finished phase extracted, by position; each access maps one file and reads what is used.

    Args:
        run: the handle.
        phase: the name of a phase that called :meth:`FeatureStore.fill`.
    """

    def __init__(self, run: Run, phase: str) -> None:
        index = read_json(run.store[phase] / INDEX)
        self._folder = run.cache / index["folder"]
        self._files: list[str] = index["files"]

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, position: int) -> dict[str, Tensor]:
        path = self._folder / self._files[position]
        try:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise InternalError(
                f"feature {position} in {path} cannot be read: {error}",
                expected="the file as its phase wrote it; the next start computes it again",
            ) from error


def damaged_items(directory: Path, cache: Path, check: Callable[[], None]) -> int:
    """How many items of a finished phase are gone or damaged; 0 for a phase that has none.

    Every file is read once: a phase is skipped only when all of its result can be used.
    """
    try:
        index = read_json(directory / INDEX)
        folder, names, damaged = cache / index["folder"], [*index["files"]], 0
    except FileNotFoundError:
        return 0
    except (ValueError, KeyError, TypeError):
        return 1  # the index itself
    for name in names:
        check()
        damaged += not is_whole(folder / name)
    return damaged


def freeze(module: nn.Module) -> nn.Module:
    """Evaluation mode, batch norm's statistics included, and no gradients."""
    return module.eval().requires_grad_(False)


def weights_digest(module: nn.Module) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of all weights and buffers: about a second a gigabyte."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(f"{name}\0{tensor.dtype}\0{list(tensor.shape)}\0".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """One rename puts the file in place. Nothing is synced: after a crash the seal tells."""
    kept = {
        name: tensor.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(seal(save(kept, {SEAL: UNSEALED})))
        if path.is_dir():  # nothing of ours, and in the way
            remove_tree(path)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _bytes(tensor: Tensor) -> Any:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy() if flat.numel() else b""


def _versions(module: nn.Module | None) -> list[int]:
    return [] if module is None else [each._version for each in module.state_dict(keep_vars=True).values()]


def _batches(items: Iterable[tuple[Path, Item]], size: int) -> Iterator[list[tuple[Path, Item]]]:
    some: list[tuple[Path, Item]] = []
    for item in items:
        some.append(item)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some
