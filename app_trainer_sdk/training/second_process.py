"""Owns a process that works beside this one, forked at its first task: what is imported here is there too.

Whoever has two tasks calls :func:`both`; whether there is a second process changes how long they take, and
nothing else. What it takes and gives is copied, and it ends with this process. This file must not know what is
worked on.
"""

from __future__ import annotations

import contextlib
import contextvars
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, wait
from typing import TypeVar

from app_trainer_sdk.descendants import die_with_parent
from app_trainer_sdk.limits import processors

T = TypeVar("T")

#: Seconds that the second task may take longer than the first, besides ten times as long.
PATIENCE = 30.0

_beside: contextvars.ContextVar[ProcessPoolExecutor | None] = contextvars.ContextVar("beside", default=None)


@contextlib.contextmanager
def second_process(count: int | None = None) -> Iterator[None]:
    """Inside, :func:`both` has a second process; not where there is one processor alone.

    Begin it before anything computes a gradient: with a card in the machine autograd has threads of its own
    from then on, and refuses to work in a process that is forked later.

    Args:
        count: processors; those that this process may use when not given.
    """
    if (processors().count if count is None else count) < 2:
        yield
        return
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=fork, initializer=_begin) as beside:
        token = _beside.set(beside)
        try:
            yield
        except BaseException:
            _end(beside)  # nobody wants what it works on any more, and it may hang
            raise
        finally:
            _beside.reset(token)


def both(here: Callable[[], T], there: Callable[[], T], *, patience: float = PATIENCE) -> tuple[T, T]:
    """What two tasks give, the second one done meanwhile in the second process if there is one, by a pickle.

    Where the other process fails the work is done again here, so that an error is the same with and without it.
    So it is where it hangs, as a fork does that met a lock which a thread held: it is ended, for good.

    Args:
        here: the first task.
        there: the second one.
        patience: see :data:`PATIENCE`.

    Raises:
        Exception: whatever a task raises in this process, the first one's before the second one's.
    """
    started = time.monotonic()
    beside, waiting = _beside.get(), None
    if beside is not None:
        with contextlib.suppress(BrokenExecutor):  # it died of an earlier task
            waiting = beside.submit(there)
    first = here()
    if beside is not None and waiting is not None:
        if not wait([waiting], patience + 10 * (time.monotonic() - started)).done:
            _end(beside)  # which is what there is to wait for then
        with contextlib.suppress(Exception):
            return first, waiting.result()
    return first, there()


def _end(beside: ProcessPoolExecutor) -> None:
    """Kill the process of ``beside``, and no other child. Python 3.14's ``kill_workers`` does the same."""
    for process in list((beside._processes or {}).values()):
        process.kill()


def _begin() -> None:
    import torch

    die_with_parent()
    _beside.set(None)  # the fork knows its own executor, and would wait for itself
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
