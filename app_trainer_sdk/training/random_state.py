"""Owns the global random generators as tensors, so that a checkpoint carries them without a pickle.

The ordinary loop draws by position and does not need them; a trainer with its own loop may. This file must not
know who draws.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch
from torch import Tensor

from app_trainer_sdk.errors import InternalError


def capture_random(device: torch.device) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """State of python's, numpy's, torch's and the device's generators: tensors by name, and plain values."""
    version, words, gauss = random.getstate()
    numpy_state: Any = numpy.random.get_state()  # a tuple unless asked for a dict
    tensors = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(numpy_state[1].astype(numpy.int64)),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        tensors["device"] = torch.cuda.get_rng_state(device)
    values = {
        "python": [version, gauss],
        "numpy": [numpy_state[0], int(numpy_state[2]), int(numpy_state[3]), float(numpy_state[4])],
    }
    return tensors, values


def restore_random(tensors: Mapping[str, Tensor], values: Mapping[str, Any], device: torch.device) -> None:
    """Put the generators back.

    Raises:
        InternalError: it cannot be; resuming with half of the state would not be exact.
    """
    problem = random_problem(tensors, values, device)
    if problem:
        raise InternalError(f"the checkpoint has {problem}", expected="the state of every generator")
    version, gauss = values["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))
    kind, position, has_gauss, cached = values["numpy"]
    words = tensors["numpy"].numpy().astype(numpy.uint32)
    numpy.random.set_state((kind, words, position, has_gauss, cached))
    torch.set_rng_state(tensors["torch"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors["device"], device)


def random_problem(tensors: Mapping[str, Tensor], values: Mapping[str, Any], device: torch.device) -> str:
    """What keeps saved generators from being put back on this device and in these versions, or nothing."""
    return ", ".join(_problems(tensors, values, device))


def _problems(tensors: Mapping[str, Tensor], values: Mapping[str, Any], device: torch.device) -> Iterator[str]:
    here, here_values = capture_random(device)
    for name, tensor in here.items():
        saved = tensors.get(name)
        if saved is None or (name in here_values and name not in values):
            yield f"no state of {name}"
        elif (saved.dtype, saved.shape) != (tensor.dtype, tensor.shape):
            yield f"{name} as {saved.dtype} {tuple(saved.shape)}, here {tensor.dtype} {tuple(tensor.shape)}"
        elif name in here_values and values[name][0] != here_values[name][0]:
            yield f"{name} of kind {values[name][0]}, here {here_values[name][0]}"
