"""Owns finding which tensors and modules were made inside a scope and still live.

At the beginning of a scope everything that exists is set aside in the garbage collector's permanent
generation, so that at its end only what was made inside has to be looked at: that costs nothing per object
that was there before. The permanent generation belongs to the process, so one :class:`Census` does too. This
file must not know who holds what lives (``holders.py`` does), phases or policies.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

#: Of the time at most so much goes into collecting everything; phases that follow each other at once share one.
COLLECTION_SHARE = 0.05

Born = list["weakref.ref[Any]"]


@dataclass(eq=False)
class Scope:
    """One scope of a census: what was made inside so far, as weak references, and what was imported before."""

    born: Born = field(default_factory=list)
    modules: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))


class Census:
    """Follows which tensors and modules are made inside scopes, nested ones included."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._scopes: list[Scope] = []
        self._collected_at = float("-inf")
        self._collection_seconds = 0.0

    def enter(self) -> Scope:
        """Begin a scope: garbage is collected, and all that exists is set aside."""
        self._note()
        if self._clock() - self._collected_at > self._collection_seconds / COLLECTION_SHARE:
            self._collect_everything()
        else:
            gc.collect(1)  # what is young; the rest was looked at a moment ago
        scope = Scope()
        self._scopes.append(scope)
        gc.freeze()
        return scope

    def leave(self, scope: Scope, *, everything: bool = False) -> None:
        """End a scope; afterwards ``scope.born`` is what was made inside and lives.

        Args:
            scope: from :meth:`enter`.
            everything: collect what is set aside too. The scope may be left again to do so.
        """
        if everything:
            self._collect_everything()
        else:
            gc.collect()  # without what is set aside
        is_open = scope in self._scopes
        if is_open:
            self._note()
            self._scopes.remove(scope)
        scope.born = [each for each in scope.born if each() is not None]
        if is_open and self._scopes:
            self._scopes[-1].born += scope.born
        gc.unfreeze()
        if self._scopes:
            gc.freeze()

    @contextlib.contextmanager
    def thawed(self) -> Iterator[None]:
        """Inside, the search for holders sees everything; afterwards enclosing scopes go on."""
        gc.unfreeze()
        try:
            yield
        finally:
            if self._scopes:
                gc.freeze()

    def _collect_everything(self) -> None:
        """Collect what is set aside too: among a million objects that takes 0.2 s."""
        started = self._clock()
        gc.unfreeze()
        gc.collect()
        self._collected_at = self._clock()
        self._collection_seconds = self._collected_at - started

    def _note(self) -> None:
        """Remember what was made since the last boundary, for the scope it was made in."""
        if not self._scopes:
            return
        objects = gc.get_objects()
        kinds = _with_subclasses(Tensor) | _with_subclasses(nn.Module)
        # In C: a phase may have made a million objects, of which three are tensors.
        chosen = itertools.compress(objects, map(kinds.__contains__, map(type, objects)))
        self._scopes[-1].born += [weakref.ref(each) for each in chosen]


CENSUS = Census()


def _with_subclasses(kind: type) -> set[type]:
    found, waiting = {kind}, [kind]
    while waiting:
        new: set[type] = {*waiting.pop().__subclasses__()} - found
        found |= new
        waiting += new
    return found
