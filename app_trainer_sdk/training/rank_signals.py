"""Owns what signals mean to a rank, and how it leaves: asked, ended from outside, or without its supervisor.

It must not know what a rank works on, nor import torch: it has to be in force before that is loaded.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
from typing import NoReturn

from app_trainer_sdk.channel import StopToken
from app_trainer_sdk.descendants import adopt_orphans, die_with_parent, end_below
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.ranks import STACKS_SIGNAL
from app_trainer_sdk.training import interrupts

#: The outcome is on disk: what is left to say may be lost.
FLUSH_SECONDS = 5.0


def settle_signals(token: StopToken) -> None:
    """Stop requests come over the channel. A signal meant for the group must not interrupt a save.

    SIGTERM is for this rank alone and ends it at once, whatever it computes. When the supervisor dies, the
    channel closes and its reader ends everything here; should the interpreter be busy elsewhere, the kernel's
    SIGHUP makes the C library call ``alarm(SIGHUP)``, which is ``alarm(1)``, and SIGALRM ends the process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    library = ctypes.CDLL(None)
    library.signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
    library.signal(signal.SIGHUP, ctypes.cast(library.alarm, ctypes.c_void_p))
    die_with_parent(signal.SIGHUP)
    adopt_orphans()
    faulthandler.enable(all_threads=True)
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    interrupts.install(token)


def leave_with_children() -> None:
    """The supervisor is dead: a replay or loader worker that stayed would hold the device of the next start."""
    end_below(os.getpid())
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(ExitCode.PEER_FAILED)


def end_process(code: int) -> NoReturn:
    """End at once: threads of libraries must not hold the container, nor a log that takes nothing any more."""
    watchdog = threading.Timer(FLUSH_SECONDS, os._exit, (code,))
    watchdog.daemon = True
    watchdog.start()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
