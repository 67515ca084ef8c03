"""Owns the answer to "who holds this object": references followed backwards to a name a person can find.

A path ends at a local of a running function, a global of a module or a class attribute. The running
functions' own locals are invisible to the garbage collector and are looked up in their frames. This file
must not know tensors' sizes, phases or what is done about a holder.
"""

from __future__ import annotations

import functools
import gc
import inspect
import itertools
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

#: One search among a million objects costs some 30 ms: a path is given up after so many of them.
MOST_STEPS = 24
MOST_HOLDERS_AT_ONCE = 64
KEY_CHARACTERS = 40
#: How torch keeps what a module owns; the name of such a dictionary says nothing to a person.
REGISTRIES = ("_parameters", "_buffers", "_modules")
ARROW = " → "


@dataclass(frozen=True)
class Trail:
    """The way from a name to an object that it keeps alive.

    Attributes:
        name: where it begins, such as ``trainer`` or ``my_image.encode.CACHE``.
        steps: attributes, keys and indices from there on, such as ``.cache['encoder']``.
        place: where a local lives, such as ``encode() at trainer.py:88``; empty for globals.
        holder: what refers to the object directly, or None.
        module: the module whose global or class the path begins at; empty for locals.
        certain: whether the path begins at what lives for sure: a local of a running function or a global.
    """

    name: str
    steps: str = ""
    place: str = ""
    holder: Any = None
    module: str = ""
    certain: bool = False

    def text(self, further: str = "") -> str:
        """The path for people, ``further`` steps included."""
        steps = self.steps + further
        if not self.place:
            return self.name + steps
        if not steps:
            return f"local `{self.name}` in {self.place}"
        return f"{self.name}{steps} (`{self.name}` is a local in {self.place})"


class Tracer:
    """Looks for holders, now. Make a new one for each moment.

    Args:
        own: ids of lists and dictionaries that the search must not take for holders.
        machinery: file names of functions whose locals are no holders either.
    """

    def __init__(self, own: Iterable[int] = (), machinery: Iterable[str] = ()) -> None:
        self._own = {*own}
        self._locals = _running_locals({*machinery, __file__})
        self._globals = {id(vars(module)): name for name, module in reversed(_modules())}

    def path(self, target: Any) -> Trail:
        """The shortest path from a name to ``target``; without one, the last holder that could be found."""
        nodes, children, frontier = [target], [-1], [0]
        self._own.add(id(nodes))
        seen = {id(target)}
        for _ in range(MOST_STEPS):
            for index in frontier:
                if self._is_root(nodes[index]):
                    return self._told(nodes, children, index)
            found = self._next(nodes, children, frontier, seen)
            if not found:
                break
            frontier = found
        return self._told(nodes, children, frontier[0])

    def _next(self, nodes: list[Any], children: list[int], frontier: list[int], seen: set[int]) -> list[int]:
        """Everything that refers to the frontier, appended to ``nodes`` with what it refers to."""
        targets = {id(nodes[index]): index for index in frontier}
        holders = gc.get_referrers(*(nodes[index] for index in frontier))
        self._own.add(id(holders))
        found = []
        for holder in holders:
            if id(holder) in seen or id(holder) in self._own:
                continue
            child = next((targets[id(each)] for each in gc.get_referents(holder) if id(each) in targets), None)
            if child is None:
                continue
            seen.add(id(holder))
            nodes.append(holder)
            children.append(child)
            found.append(len(nodes) - 1)
            if len(found) == MOST_HOLDERS_AT_ONCE:
                break
        self._own.discard(id(holders))
        return found

    def _is_root(self, node: Any) -> bool:
        return (
            id(node) in self._locals or id(node) in self._globals or isinstance(node, types.ModuleType | type)
        )

    def _told(self, nodes: list[Any], children: list[int], index: int) -> Trail:
        way = [nodes[index]]
        while children[index] >= 0:
            index = children[index]
            way.append(nodes[index])
        holder = way[-2] if len(way) > 1 else None
        root, *rest = way
        if id(root) in self._locals:
            name, place = self._locals[id(root)]
            return Trail(name, _steps(way), place, holder, certain=True)
        name = self._globals.get(id(root)) or _root_name(root)
        if id(root) in self._globals and rest:
            return Trail(f"{name}.{_key_of(root, rest[0])}", _steps(rest), "", holder, name, certain=True)
        if isinstance(root, types.ModuleType | type):
            home = root.__module__ if isinstance(root, type) else name
            return Trail(name, _steps(way), "", holder, home)
        return Trail(f"a {name} that only C++ or a running expression holds", _steps(way), "", holder)


def referred(targets: Sequence[Any], own: Iterable[int] = ()) -> set[int]:
    """Ids of those ``targets`` that some Python object refers to; the rest is held by C++, such as autograd."""
    ours, wanted, found = {*own, id(targets)}, {id(each) for each in targets}, set[int]()
    for holder in gc.get_referrers(*targets):
        if id(holder) not in ours:
            found |= wanted.intersection(map(id, gc.get_referents(holder)))
    return found | (wanted & _running_locals({__file__}).keys())


def _steps(way: list[Any]) -> str:
    """Attributes, keys and indices from the first node to the last."""
    text, as_attribute = "", False
    for position, (holder, child) in enumerate(itertools.pairwise(way)):
        before = way[position - 1] if position else None
        step = _step(holder, child, before, as_attribute)
        as_attribute = step.lstrip(".") in REGISTRIES
        text += "" if as_attribute else step
    return text


def _step(holder: Any, child: Any, before: Any, as_attribute: bool) -> str:
    """One step as a person would write it; ``before`` is the holder's own holder."""
    if isinstance(holder, dict):
        key = _key_of(holder, child)
        if as_attribute or _is_namespace(holder, before):
            return f"[{key}]" if key.isdecimal() else f".{key}"
        return f"[{_short(_raw_key(holder, child))}]"
    if isinstance(holder, list | tuple | deque):
        index = next((at for at, each in enumerate(holder) if each is child), None)
        if isinstance(before, types.FunctionType) and holder is before.__closure__ and index is not None:
            return f"{ARROW}closure variable `{before.__code__.co_freevars[index]}` of {before.__qualname__}()"
        return f"[{index}]"
    if isinstance(holder, set | frozenset):
        return "{...}"
    return _object_step(holder, child)


def _object_step(holder: Any, child: Any) -> str:
    if isinstance(holder, types.CellType | types.TracebackType):
        return ""
    if isinstance(holder, types.FrameType):
        return f"{ARROW}local `{_local_name(holder, child)}` in {_place(holder)}"
    if isinstance(holder, types.GeneratorType | types.CoroutineType):
        frame = holder.gi_frame if isinstance(holder, types.GeneratorType) else holder.cr_frame
        name = _local_name(frame, child) if frame is not None else "?"
        return f"{ARROW}local `{name}` in {holder.__qualname__}()"
    if isinstance(holder, BaseException) and isinstance(child, types.TracebackType):
        return f"{ARROW}traceback of {type(holder).__name__}"
    if isinstance(holder, types.FunctionType):
        return _function_step(holder, child)
    if isinstance(holder, functools.partial):
        parts = {"args": holder.args, "keywords": holder.keywords, "func": holder.func}
        return next((f".{name}" for name, part in parts.items() if part is child), ".args")
    if isinstance(holder, types.MethodType):
        return ".__self__"
    if child is getattr(holder, "__dict__", None) or (isinstance(holder, type) and isinstance(child, dict)):
        return ""
    if type(holder) is functools._lru_cache_wrapper:
        return f"{ARROW}a cached result"
    name = next((name for name, value in _attributes(holder) if value is child), "")
    return f".{name}" if name else f"{ARROW}inside a {type(holder).__name__}"


def _function_step(function: types.FunctionType, child: Any) -> str:
    if child is function.__closure__ or child is function.__dict__:
        return ""
    defaults = (function.__defaults__, function.__kwdefaults__)
    return f"{ARROW}default of {function.__qualname__}()" if any(child is each for each in defaults) else ""


def _attributes(holder: Any) -> Iterator[tuple[str, Any]]:
    """Attributes kept in the object itself: values without a dictionary yet, and slots."""
    namespace = getattr(holder, "__dict__", None)
    if isinstance(namespace, dict):
        yield from list(namespace.items())
    for kind in type(holder).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in [slots] if isinstance(slots, str) else slots:
            descriptor = kind.__dict__.get(name)
            if isinstance(descriptor, types.MemberDescriptorType) and hasattr(holder, name):
                yield name, getattr(holder, name)


def _is_namespace(holder: dict[Any, Any], before: Any) -> bool:
    if isinstance(before, type):
        return True  # a class shows its dictionary only through a proxy
    return before is not None and not isinstance(before, dict) and getattr(before, "__dict__", None) is holder


def _raw_key(holder: Mapping[Any, Any], child: Any) -> Any:
    return next((key for key, value in list(holder.items()) if value is child), "a key")


def _key_of(holder: Mapping[Any, Any], child: Any) -> str:
    return str(_raw_key(holder, child))


def _short(key: Any) -> str:
    """A key as it would be written; an object's own text may be long or cost much."""
    if not isinstance(key, str | bytes | int | float | tuple | type(None)):
        return f"<{type(key).__name__}>"
    text = repr(key) if not isinstance(key, tuple) else f"({', '.join(_short(each) for each in key)})"
    return text if len(text) <= KEY_CHARACTERS else text[: KEY_CHARACTERS - 3] + "..."


def _root_name(node: Any) -> str:
    if isinstance(node, types.ModuleType):
        return node.__name__
    if isinstance(node, type):
        return f"{node.__module__}.{node.__qualname__}"
    return type(node).__name__


def _modules() -> list[tuple[str, types.ModuleType]]:
    return [
        (name, module) for name, module in list(sys.modules.items()) if isinstance(module, types.ModuleType)
    ]


def _running_locals(machinery: set[str]) -> dict[int, tuple[str, str]]:
    """Name and place of every local of every running function, by the value's id."""
    found: dict[int, tuple[str, str]] = {}
    top: types.FrameType | None
    for top in list(sys._current_frames().values()):
        frame: types.FrameType | None = top
        while frame is not None:
            if frame.f_code.co_filename not in machinery and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                place = _place(frame)
                for name, value in _locals(frame):
                    found.setdefault(id(value), (name, place))
            frame = frame.f_back
    top = None  # this very function's frame: it would hold itself, and with it the locals of all who called
    return found


def _local_name(frame: types.FrameType, child: Any) -> str:
    return next((name for name, value in _locals(frame) if value is child), "?")


def _locals(frame: types.FrameType) -> list[tuple[str, Any]]:
    """Names and values of a function's locals, leaving no reference behind.

    Up to Python 3.12 ``f_locals`` is a copy that the frame keeps: it would hold the very objects that are
    looked for. It is emptied, unless somebody asked for it before (three references are the frame's and ours).
    """
    namespace: Any = frame.f_locals
    pairs = [*namespace.items()]
    is_copy = frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(namespace) is dict
    if is_copy and sys.getrefcount(namespace) <= 3:
        namespace.clear()
    return pairs


def _place(frame: types.FrameType) -> str:
    code = frame.f_code
    return f"{code.co_qualname}() at {Path(code.co_filename).name}:{frame.f_lineno}"


def tensor_names(module: nn.Module, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor a module owns with its path inside it: ``.layers[0].weight``."""
    for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
        if tensor is not None:
            yield f"{prefix}.{name}", tensor
    for name, child in module._modules.items():
        if child is not None:
            yield from tensor_names(child, prefix + (f"[{name}]" if name.isdecimal() else f".{name}"))
