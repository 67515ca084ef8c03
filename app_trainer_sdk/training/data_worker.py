"""Owns what a process that reads for a rank is: whose it is, and that what it cannot hand over is told.

A queue's own thread hands batches over. What it cannot hand over it drops, and the rank would wait for it for
ever. This file must not know what is read.
"""

from __future__ import annotations

import signal
from multiprocessing import queues
from typing import Any

import torch
from torch._utils import ExceptionWrapper

from app_trainer_sdk.descendants import die_with_parent
from app_trainer_sdk.errors import HardwareUnfit, is_disk_full
from app_trainer_sdk.limits import shared_memory
from app_trainer_sdk.quantities import MIB


def start_worker(_: int) -> None:
    """A worker dies with the rank, leaves Ctrl-C to the supervisor and computes on one thread."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    # Python's hook for what a queue could not send; in this process alone, which was forked for reading.
    queues.Queue._on_queue_feeder_error = _tell_instead  # type: ignore[attr-defined]


def _tell_instead(queue: Any, error: Exception, dropped: Any) -> None:
    """Hand over why a batch cannot be: the loader raises it in the rank, in the batch's turn."""
    index, *_ = dropped
    if is_disk_full(error):  # the only disk that batches are written to
        error = HardwareUnfit(
            f"shared memory is full: {shared_memory() / MIB:,.0f} MiB are free in /dev/shm, and one more batch "
            "does not fit",
            expected="room for what all loader workers read ahead",
            setting="--shm-size (an emptyDir of medium Memory at /dev/shm), or fewer dataloader_workers",
        )
    told = (type(error), error, error.__traceback__)
    wrapped = ExceptionWrapper(told, where="in a data worker, handing a batch over")  # type: ignore[no-untyped-call]
    queue.put((index, wrapped))
