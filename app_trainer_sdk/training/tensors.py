"""Owns reading tensors from a file that somebody else wrote: safetensors, or a pickle that the job allows.

Only this file calls ``torch.load``. It must not know models.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from app_trainer_sdk.errors import BadData
from app_trainer_sdk.trust.formats import is_pickle, refuse_untrusted


def load_tensors(file: Path, *, allowed: Collection[str] = (), role: str = "base") -> dict[str, Tensor]:
    """Tensors by name, on the CPU.

    Args:
        file: what holds them.
        allowed: the job's ``allow`` (``run.allow``).
        role: which set of weights it is, for a refusal.

    Raises:
        BadJob: it is a pickle, and the job allows none.
        BadData: it is allowed, and more than tensors by name: ``weights_only`` holds even then.
    """
    refuse_untrusted({role: file}, allowed)
    if not is_pickle(file):
        return load_file(file)
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - whatever unpickling raises, the file is what is wrong
        reason = str(error).strip().partition("\n")[0][:200]
        raise BadData(
            f"{file.name}: {reason}", expected="tensors by name alone", setting=f"/weights/{role}"
        ) from None
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise BadData(f"{file.name} holds no tensors by name", expected="them", setting=f"/weights/{role}")
    return found
