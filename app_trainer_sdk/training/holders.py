"""Owns telling who holds what outlived a scope, so that a person can act: names, sizes, the largest first.

This file must not know how survivors are found (``census.py``), nor what is made of them.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from app_trainer_sdk.training import census, owners
from app_trainer_sdk.training.census import Scope
from app_trainer_sdk.training.owners import Tracer, Trail

#: Naming a holder searches all objects several times: at most so many names, and no new one after so long.
MOST_TRAILS = 20
TRAIL_SECONDS = 2.0
MOST_EXAMPLES = 5
#: One search compares every reference with so many targets at once: 0.2 s among a million objects.
TARGETS_AT_ONCE = 200
NOBODY = "autograd graphs or C++"
NOT_SOUGHT = "holders that were not looked for"


@dataclass(frozen=True)
class Held:
    """Tensors that outlived a scope, and who holds them.

    Attributes:
        owner: a path from a name: ``trainer.cache['encoder']``, or "local `outputs` in encode() at ...".
        kind: class of the module that owns the tensors, or of the container; empty for a single tensor.
        tensors: how many.
        bytes: of their storages, each counted once; ``device_bytes`` of those on the probed device.
        graphs: how many of them carry an autograd graph, whose memory is not among ``bytes``.
        imported: whether the path begins at a module that was imported inside the scope.
        certain: whether the path begins at what lives for sure; garbage may be a holder else.
        examples: the largest: path, shape, dtype, device, bytes.
    """

    owner: str
    kind: str
    tensors: int
    bytes: int
    device_bytes: int
    graphs: int
    imported: bool = False
    certain: bool = False
    examples: Sequence[dict[str, Any]] = ()

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "examples": list(self.examples)}


def name_holders(
    scope: Scope, device: str, *, handed: Sequence[Any] = (), machinery: Sequence[str] = (),
    clock: Callable[[], float] = time.perf_counter,
) -> list[Held]:  # fmt: skip
    """Who holds what was made inside a scope, the largest first. Call it inside :meth:`Census.thawed`.

    Args:
        scope: one that was left.
        device: where memory is judged, ``cpu`` or ``cuda``.
        handed: weak references to tensors that were handed over: they and views of them are no survivors.
        machinery: file names of functions whose locals are not told as holders.
        clock: seconds, monotonic.
    """
    living = [each for each in (reference() for reference in scope.born) if each is not None]
    excused = {_storage(each)[0] for each in (reference() for reference in handed) if each is not None}
    loose = {id(each): each for each in living if isinstance(each, Tensor) and _is_memory(each)}
    loose = {key: each for key, each in loose.items() if _storage(each)[0] not in excused}
    if not loose:
        return []
    modules = [each for each in living if isinstance(each, nn.Module)]
    tops = _tops(modules)
    ours = {id(each) for each in (living, loose, modules, tops)}
    machinery = (__file__, census.__file__, contextlib.__file__, *machinery)
    book = _Book(device, loose, ours, scope.modules, Tracer(ours, machinery))
    deadline = clock() + TRAIL_SECONDS
    for module in tops:
        book.add_module(module, name=clock() < deadline)
    book.add_unreferred(deadline, clock)
    while book.loose:
        if len(book.held) >= MOST_TRAILS or clock() > deadline:
            book.add_rest()
        else:
            book.add_largest()
    return sorted(book.held, key=lambda held: (held.owner != NOBODY, held.bytes, held.graphs), reverse=True)


class _Book:
    """Survivors that are not told yet, and those that are."""

    def __init__(
        self, device: str, loose: dict[int, Tensor], own: set[int], modules: frozenset[str], tracer: Tracer
    ) -> None:
        self.device = device
        self.loose = loose
        self.tracer = tracer
        self._own = own
        self._modules = modules
        self.held: list[Held] = []
        self._counted: set[int] = set()

    def add_module(self, module: nn.Module, *, name: bool) -> None:
        """Tell the survivors that a module owns, under the module's own holder."""
        owned = [(path, each) for path, each in owners.tensor_names(module) if id(each) in self.loose]
        # The engine makes gradients, so Python may not have seen them.
        owned += [(f"{path}.grad", each.grad) for path, each in owned if each.is_leaf and each.grad is not None]
        if owned:
            trail = self._trail(module) if name else Trail(NOT_SOUGHT)
            self._add(trail, type(module).__name__, owned)

    def add_unreferred(self, deadline: float, clock: Callable[[], float]) -> None:
        """Tell as one what no Python object refers to: what graphs of autograd have saved, and C++'s own.

        Where it is the memory of something that is referred to, such as what a view was taken of, that is told.
        """
        waiting = [*self.loose.values()]
        nobodys: list[Tensor] = []
        ours = {id(waiting), id(nobodys), *self._own}
        while waiting and clock() < deadline:
            some, waiting[:TARGETS_AT_ONCE] = waiting[:TARGETS_AT_ONCE], []
            known = owners.referred(some, ours)
            nobodys += [each for each in some if id(each) not in known]
        for each in nobodys:
            del self.loose[id(each)]
        named = self._counted | {_storage(each)[0] for each in self.loose.values()}
        if untold := [("", each) for each in nobodys if _storage(each)[0] not in named]:
            self._add(Trail(NOBODY), "", untold)

    def add_largest(self) -> None:
        """Tell the largest survivor, and all others in the same container."""
        # No comprehension may mention the target: it would sit in a cell, which looks like a holder.
        target = max(self.loose.values(), key=_weight)
        trail = self._trail(target)
        kind = type(trail.holder).__name__
        owned = [target]
        for member in _members(trail.holder):
            if isinstance(member, Tensor) and id(member) in self.loose and member is not target:
                owned.append(member)
        self._add(trail, kind if len(owned) > 1 else "", [("", each) for each in owned])

    def add_rest(self) -> None:
        """Tell what is left as one."""
        self._add(Trail(NOT_SOUGHT), "", [("", each) for each in self.loose.values()])

    def _trail(self, target: Any) -> Trail:
        try:
            return self.tracer.path(target)
        except Exception as error:  # noqa: BLE001 - foreign objects may do anything when looked at
            return Trail(f"a holder that could not be followed ({type(error).__name__}: {error})")

    def _add(self, trail: Trail, kind: str, owned: Sequence[tuple[str, Tensor]]) -> None:
        examples: list[dict[str, Any]] = []
        total = on_device = graphs = 0
        for path, tensor in owned:
            self.loose.pop(id(tensor), None)
            storage, size = _storage(tensor)
            size = 0 if storage in self._counted else size
            self._counted.add(storage)
            total += size
            on_device += size if tensor.device.type == self.device else 0
            graphs += tensor.grad_fn is not None
            if size or not examples:
                examples.append(_example(trail.text(path), tensor, size))
        examples.sort(key=lambda each: -int(each["bytes"]))
        is_new = bool(trail.module) and trail.module not in self._modules
        told = tuple(examples[:MOST_EXAMPLES])
        self.held.append(
            Held(trail.text(), kind, len(owned), total, on_device, graphs, is_new, trail.certain, told)
        )


def _weight(tensor: Tensor) -> tuple[int, bool]:
    return _storage(tensor)[1], tensor.grad_fn is not None


def _example(path: str, tensor: Tensor, size: int) -> dict[str, Any]:
    return {
        "path": path, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."),
        "device": str(tensor.device), "bytes": size,
    }  # fmt: skip


def _members(holder: Any) -> Sequence[Any]:
    if isinstance(holder, dict):
        return [*holder.values()]
    return [*holder] if isinstance(holder, list | tuple | set | deque) else []


def _tops(modules: Sequence[nn.Module]) -> list[nn.Module]:
    """Modules that are no part of another one made inside."""
    parts = {id(child) for module in modules for child in module._modules.values()}
    return [module for module in modules if id(module) not in parts]


def _is_memory(tensor: Tensor) -> bool:
    """Fake and meta tensors have shapes and no bytes."""
    return tensor.device.type != "meta" and type(tensor).__name__ != "FakeTensor"


def _storage(tensor: Tensor) -> tuple[int, int]:
    """What identifies a tensor's memory, and its bytes; a sparse one has several, counted by its elements."""
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, storage.nbytes()
    except (NotImplementedError, RuntimeError):
        return id(tensor), tensor.numel() * tensor.element_size()
