"""Owns ``metrics.jsonl``: one line for each update, values read from the device late and in groups.

Floats are written so that they read back exactly; a non-finite number is null, and its name stands in
``nonfinite``. This file must not know what the numbers mean.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from app_trainer_sdk.callbacks.spread import Spreads, join_all, spread_of
from app_trainer_sdk.files import append_whole_line, cut_torn_line
from app_trainer_sdk.values import StepInfo

#: Lines kept in memory before they are written; also the most that a hard kill can cost.
GROUP_LINES = 32
GROUP_SECONDS = 1.0
#: Made once: ``json.dumps`` makes an encoder for every line that is not to have NaN.
ENCODE = json.JSONEncoder(allow_nan=False).encode
#: The field of a line, of an evaluation's too, that says what was tried and did not fit.
OUT_OF_MEMORY = "out_of_memory"


class MetricsWriter:
    """Appends lines to ``metrics.jsonl``.

    Args:
        path: the file.
        clock: seconds, monotonic.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._path = path
        self._clock = clock
        self._file = path.open("ab")
        self._waiting: list[tuple[dict[str, Any], dict[str, Tensor | float]]] = []
        self._written_at = clock()
        self.lines = count_lines(path)
        self.latest: dict[str, Any] = {}
        self._spreads: Spreads = {}
        self._nonfinite: set[str] = set()

    def add(self, info: StepInfo, seconds: float) -> None:
        """Take one update; its tensors are read when the group is written."""
        line = {
            "step": info.step, "learning_rate": info.learning_rate, "units": info.units,
            "examples": info.examples, "seconds": seconds, "data_seconds": info.data_seconds,
            "ids": info.ids_digest, "applied": info.applied,
        }  # fmt: skip
        if info.data_parts:
            line["data_parts"] = {name: round(value, 6) for name, value in info.data_parts.items()}
        if info.why:
            line["why"] = info.why
        if info.recovered:
            line[OUT_OF_MEMORY] = list(info.recovered)
        numbers: dict[str, Tensor | float] = {"loss": _as_it_is(info.loss)}
        if info.gradient_norm is not None:
            numbers["gradient_norm"] = _as_it_is(info.gradient_norm)
        with torch.no_grad():
            for name, (total, count) in info.metrics.items():
                numbers[name] = total / count if isinstance(count, Tensor) or count else math.nan
        self._waiting.append((line, numbers))
        if len(self._waiting) >= GROUP_LINES or self._clock() - self._written_at > GROUP_SECONDS:
            self.flush()

    def flush(self, *, sync: bool = False) -> None:
        """Write what waits; with ``sync`` it is on the disk afterwards."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            values = read_numbers([number for _, numbers in waiting for number in numbers.values()])
            lines = [_complete(line, numbers, values) for line, numbers in waiting]
            self._file.write(b"".join(ENCODE(line).encode() + b"\n" for line in lines))
            self.lines += len(lines)
            self.latest = lines[-1]
            columns: dict[str, list[float | None]] = {}
            for line, (_, numbers) in zip(lines, waiting, strict=True):
                self._nonfinite.update(line.get("nonfinite", ()))
                for name in numbers:
                    columns.setdefault(name, []).append(line[name])
            spreads = {name: spread_of(column) for name, column in columns.items()}
            self._spreads = join_all([self._spreads, spreads])
        self._file.flush()
        self._written_at = self._clock()
        if sync:
            os.fsync(self._file.fileno())

    def take_spreads(self) -> tuple[Spreads, list[str]]:
        """What each number did since the last call, over every written line, and which were not finite."""
        taken = self._spreads, sorted(self._nonfinite)
        self._spreads, self._nonfinite = {}, set()
        return taken

    def close(self) -> None:
        """Write what waits and close the file."""
        self.flush(sync=True)
        self._file.close()


def _as_it_is(number: Tensor | float) -> Tensor | float:
    """A number that is read later: a loop of one's own may change its tensor, or leave a graph behind it."""
    return number.detach().clone() if isinstance(number, Tensor) else number


def read_numbers(numbers: list[Tensor | float]) -> Iterator[float]:
    """Host values of tensors and floats in order, with one transfer for each device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for number in numbers:
        if isinstance(number, Tensor):
            plain = number if number.ndim == 0 else number.reshape(())
            groups.setdefault((plain.device, plain.dtype), []).append(plain)
    with torch.no_grad():
        read = {key: iter(torch.stack(tensors).tolist()) for key, tensors in groups.items()}
    for number in numbers:
        yield next(read[number.device, number.dtype]) if isinstance(number, Tensor) else float(number)


def read_two(first: Tensor | float, second: Tensor | float) -> tuple[float, float]:
    """Host values of two scalars, in one transfer."""
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.device.type != "cpu":
        first, second = torch.stack((first.reshape(()), second.reshape(()))).tolist()
    return float(first), float(second)


def read_pairs(metrics: Mapping[str, tuple[Tensor | float, Tensor | float]]) -> dict[str, tuple[float, float]]:
    """Host values of sums and what they are divided by, in one transfer."""
    values = read_numbers([number for pair in metrics.values() for number in pair])
    return {name: (next(values), next(values)) for name in metrics}


def ratio(total: float, count: float) -> float | None:
    """``total / count``, or None where that is no finite number."""
    value = total / count if count else math.nan
    return value if math.isfinite(value) else None


def append_line(path: Path, document: Mapping[str, Any]) -> None:
    """Append one JSON line, whole or not at all, and make it durable."""
    cut_torn_line(path)
    append_whole_line(path, ENCODE(document).encode() + b"\n", sync=True)


def count_lines(path: Path) -> int:
    """Complete lines of a file, 0 when it is not there."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return sum(1 for line in file if line.endswith(b"\n"))


def keep_lines(path: Path, count: int) -> None:
    """Cut a file after its first ``count`` lines: what a killed attempt wrote past its checkpoint goes."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        for _ in itertools.islice(iter(file.readline, b""), count):
            pass
        file.truncate(file.tell())


def _complete(
    line: dict[str, Any], numbers: Mapping[str, Tensor | float], values: Iterator[float]
) -> dict[str, Any]:
    nonfinite: list[str] = []
    for name in numbers:
        value = next(values)
        if math.isfinite(value):
            line[name] = value
        else:
            line[name] = None
            nonfinite.append(name)
    if nonfinite:
        line["nonfinite"] = nonfinite
    return line
