"""Owns what needs torch at once: the rows, the head and how an exported head is read.

Only methods of the trainer import this file, so that describing the trainer does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

if TYPE_CHECKING:
    from app_trainer_sdk import JSON
    from app_trainer_sdk.training.randomness import Random

#: The digits 0 to 9 in 8×8 pixels, a byte for each row.
GLYPHS = (
    "3c4242424242423c", "0002020202020200", "3c02023e4040403c", "3c02023e0202023c", "0042427e02020200",
    "3c40407c0202023c", "3c40407c4242423c", "3c02020202020200", "3c42427e4242423c", "3c42427e0202023c",
)  # fmt: skip


class NoisyDigits:
    """Row ``index`` is a digit under noise: a pure function of the index and of ``random``."""

    def __init__(self, rows: int, noise: float) -> None:
        self._rows = rows
        self._noise = noise

    def __len__(self) -> int:
        return self._rows

    def item(self, index: int, random: Random) -> tuple[Tensor, int]:
        """The pixels and the digit."""
        digit = index % 10
        return clean(digit) + self._noise * torch.randn(64, generator=random.torch()), digit


def clean(digit: int) -> Tensor:
    """The 64 pixels of a digit without noise, each 0 or 1."""
    return torch.tensor([float(bit) for bit in f"{int(GLYPHS[digit], 16):064b}"])


def head() -> nn.Module:
    """One hidden layer and a score for each digit."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def read(folder: Path, pictures: Sequence[JSON]) -> list[JSON]:
    """What the head exported to ``folder`` sees in each picture."""
    exported = head()
    exported.load_state_dict(load_file(folder / "head.safetensors"))
    classes = json.loads((folder / "classes.json").read_text())
    return [classes[best] for best in exported(torch.tensor(pictures)).argmax(1).tolist()]
