"""Owns making a set of files local: sizes asked, space checked, small files together, large ones one by one.

It must not know what the files are for, nor what a job is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from app_trainer_sdk.cache.weights import Cache
from app_trainer_sdk.quantities import MIB
from app_trainer_sdk.transfers.addresses import HostRefused
from app_trainer_sdk.transfers.download import Check, Destination, download
from app_trainer_sdk.transfers.faults import Fault
from app_trainer_sdk.transfers.mirrors import Mirrors
from app_trainer_sdk.transfers.pauses import patiently, run_threads
from app_trainer_sdk.transfers.progress import Meter, ProgressListener
from app_trainer_sdk.transfers.requests import ask_mirror
from app_trainer_sdk.transfers.space import check_space, free_bytes
from app_trainer_sdk.transfers.tools import Tools
from app_trainer_sdk.transfers.wanted import Wanted

#: Files up to this size come first and together, each over one connection: configuration, tokenizer, index.
SMALL_BYTES = 8 * MIB
#: How long threads may take to leave what they do for others to go on with.
LEAVE_SECONDS = 1.0


def fetch_files(
    files: Sequence[Wanted], place: Destination, *, label: str, tools: Tools, check: Check,
    told: ProgressListener, reserve: int = 0, free: Callable[[Path], int] = free_bytes,
) -> dict[str, Path]:  # fmt: skip
    """Make files local; the local path of each by its name.

    Args:
        files: what is wanted; those without a size are asked for it first.
        place: where they go.
        label: what they are, for people.
        tools: connections, patience, clock.
        check: raises when somebody wants to stop.
        told: hears how far it is.
        reserve: bytes that others need on the same disk.
        free: tells the bytes left on a disk.

    Raises:
        DiskFull: they would not fit; nothing was fetched.
        TrainerError: as :func:`download`.
    """
    found = {each.path: path for each in files if (path := place.ready(each)) is not None}
    missing = {each.key: each for each in files if each.path not in found}
    sizes = {key: _size(each, tools, check) for key, each in missing.items()}
    there = sum(path.stat().st_size for path in found.values())
    meter = Meter(label, total=there + sum(sizes.values()), told=told, now=tools.clock.now)
    to_come = sum(_to_come(key, size, place) for key, size in sizes.items())
    check_space(place.partials, to_come, reserve=reserve, free=free)
    meter.reused(there)
    small = [each for key, each in missing.items() if 0 < sizes[key] <= SMALL_BYTES]
    paths = _together(small, place, tools, check, meter)
    for key, each in missing.items():
        if key not in paths:
            paths[key] = download(each, place, tools=tools, check=check, meter=meter)
    found |= {each.path: paths[each.key] for each in files if each.path not in found}
    meter.show()
    meter.finish(len(files))
    return found


def still_to_come(files: Sequence[Wanted], place: Destination) -> dict[str, int]:
    """Bytes of the disk that files will still take, by their keys; of unknown sizes none."""
    missing = {each.key: each.size or 0 for each in files if place.ready(each) is None}
    return {key: _to_come(key, size, place) for key, size in missing.items()}


def cache_place(cache: Cache) -> Destination:
    """Files under their digest in the cache."""
    return Destination(cache.partials, cache.file, read_only=True)


def _together(
    files: Sequence[Wanted], place: Destination, tools: Tools, check: Check, meter: Meter
) -> dict[str, Path]:
    """Small files at once, as many as there are connections: each is mostly waiting for an answer."""
    waiting = list(files)
    found: dict[str, Path] = {}
    failures: list[BaseException] = []
    given_up, lock = threading.Event(), threading.Lock()
    part = tools.patience.part_bytes or SMALL_BYTES  # one request for each
    one = replace(tools, patience=replace(tools.patience, connections=1, part_bytes=part))

    def stop() -> None:
        if given_up.is_set():
            raise _GivenUp

    def work() -> None:
        while True:
            with lock:
                if not waiting or given_up.is_set():
                    return
                wanted = waiting.pop(0)
            try:
                found[wanted.key] = download(wanted, place, tools=one, check=stop, meter=meter)
            except BaseException as error:  # noqa: BLE001 - raised below, where it is waited for
                failures.append(error)
                given_up.set()

    threads = [
        threading.Thread(target=work, name=f"transfer-file-{number}", daemon=True)
        for number in range(min(tools.patience.connections, len(files)))
    ]
    try:
        run_threads(threads, check)
    finally:
        given_up.set()
        until = tools.clock.now() + LEAVE_SECONDS
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - tools.clock.now()))
    if failures:
        raise failures[0]
    return found


class _GivenUp(BaseException):
    """Another file failed, or somebody wants to stop."""


def _size(wanted: Wanted, tools: Tools, check: Check) -> int:
    """Bytes of a file, from the job or the first mirror that says; 0 where none does."""
    if wanted.size is not None:
        return wanted.size
    for mirror in Mirrors(wanted, tools.patience, now=tools.clock.now, chance=tools.chance):
        try:
            facts = patiently(partial(ask_mirror, mirror, tools.web, wanted), check)
        except Fault:
            continue
        except HostRefused as refused:
            raise refused.at(wanted.setting) from None
        if facts.size is not None:
            return facts.size
    return 0


def _to_come(key: str, size: int, place: Destination) -> int:
    """Bytes of the disk that a file will still take."""
    began = [each.stat().st_blocks * 512 for each in place.partials.glob(f"{key}*/data")]
    return max(0, size - max(began, default=0))
