"""Owns where a wish to stop is raised at once, in the middle of whatever the rank does.

Most work looks for a wish by itself. Loading, compiling, one long microbatch or an export may not, for longer
than the grace: inside :func:`interruptible` the wish is raised by a signal in the main thread, as Ctrl-C is.
Only what loses nothing belongs inside: never a step of an optimizer, a save, or an exchange with other ranks.
A kernel or a call into a library ends first. This file must not know what is interrupted.
"""

from __future__ import annotations

import contextlib
import signal
import threading

from app_trainer_sdk.channel import StopToken
from app_trainer_sdk.errors import StopRequested

SIGNAL = signal.SIGUSR2

_token: StopToken | None = None
_depth = 0
_raised: StopRequested | None = None
_NOTHING = contextlib.nullcontext()


def install(token: StopToken) -> None:
    """From now on wishes of ``token`` may interrupt the main thread, which calls this."""
    global _token  # the handler of a signal belongs to the process too
    _token = token
    signal.signal(SIGNAL, lambda *_: _interrupt())


def nudge() -> None:
    """Make the main thread look for a wish, if it is at a place where that loses nothing; from any thread.

    Once may not be enough: a signal just before a wait in the kernel begins does not shorten it.
    """
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, SIGNAL)


def interruptible(*, really: bool = True) -> contextlib.AbstractContextManager[None]:
    """Inside, a wish to stop is raised wherever the main thread is.

    Args:
        really: False where it would leave others waiting.
    """
    if not really or _token is None or threading.current_thread() is not threading.main_thread():
        return _NOTHING
    return _Inside(_token)


class _Inside:
    """A class of its own: a generator would take longer, and there is one each microbatch."""

    __slots__ = ("_token",)

    def __init__(self, token: StopToken) -> None:
        self._token = token

    def __enter__(self) -> None:
        global _depth
        self._token.check()
        _depth += 1

    def __exit__(self, *error: object) -> None:
        global _depth
        _depth -= 1


def _interrupt() -> None:
    """Raise a wish, once: cleaning up after it is not interrupted again."""
    global _raised
    if not _depth or _token is None:
        return
    try:
        _token.check()
    except StopRequested as wish:
        if wish is not _raised:
            _raised = wish
            raise
