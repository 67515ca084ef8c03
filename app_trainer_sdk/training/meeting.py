"""Owns how ranks find each other, and what a broken collective means afterwards.

This file must not know what they do together.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore  # torch.distributed's, with their types

from app_trainer_sdk.errors import ExitCode, PeerFailed, StopRequested, origins
from app_trainer_sdk.outcome import code_of
from app_trainer_sdk.training.team import COLLECTIVE_TIMEOUT, Team

MEETING_TIMEOUT = datetime.timedelta(seconds=2)
#: How libraries say that the other end of a collective is gone.
PEER_WORDS = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe")
#: What a broken collective says of this rank itself: ranks waited for each other until the time was up, or the
#: device's or the host's memory did not suffice for the exchange.
HERE = (ExitCode.GPU_FAULT, ExitCode.GPU_OUT_OF_MEMORY, ExitCode.HOST_OUT_OF_MEMORY)

_here = Team()


def here() -> Team:
    """The team of this process; torch's process groups are one for each process too."""
    return _here


def local_rank(team: Team) -> int:
    """A rank's number among those of its own node."""
    return int(os.environ.get("LOCAL_RANK", team.rank)) if team.size > 1 else 0


def enter(team: Team) -> None:
    """Make ``team`` that of this process."""
    global _here  # as torch's own default group, which belongs to the process
    _here = team


def meet(
    size: int,
    check: Callable[[], None],
    asked: Callable[[], StopRequested | None],
    descriptor: int | None = None,
) -> Team:
    """Meet the other ranks where the environment says.

    Args:
        size: how many there are; alone there is nobody to meet.
        check: called while rank 0 is not there yet.
        asked: the wish to stop that this rank has heard.
        descriptor: for rank 0, the socket that the supervisor bound for the meeting.
    """
    if size > 1:
        rank = int(os.environ["RANK"])
        enter(Team(rank, size, store=_open_store(rank, check, descriptor), asked=asked))
    return here()


def _open_store(rank: int, check: Callable[[], None], descriptor: int | None) -> Store:
    """Rank 0's store. Each try is short, since rank 0 may be gone and a try cannot be interrupted."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    # Between nodes torchrun's agent holds the store already.
    holds = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    while True:
        check()
        try:
            store = TCPStore(
                host, port, is_master=holds, wait_for_workers=False, timeout=MEETING_TIMEOUT,
                master_listen_fd=descriptor if rank == 0 else None,
            )  # fmt: skip
        except dist.DistError:
            if holds:
                raise
            continue
        store.set_timeout(COLLECTIVE_TIMEOUT)
        return PrefixStore("app-trainer", store)


def ending(error: BaseException, asked: StopRequested | None) -> BaseException:
    """What an error on one of several ranks means: a collective breaks because another rank ended."""
    if isinstance(error, StopRequested) or not any(map(_is_broken_collective, origins(error))):
        return error
    if code_of(error) in HERE:
        return error
    return asked if asked is not None else PeerFailed(f"another rank ended first: {error}")


def _is_broken_collective(error: BaseException) -> bool:
    if isinstance(error, dist.DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in PEER_WORDS)
