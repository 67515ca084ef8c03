"""Owns the new process that takes up a checkpoint and tells what came back.

``python -m app_trainer_sdk.training.restore START.json CHECKPOINT ANSWER.json``. The state is built as a
resumed run builds it, and becomes a snapshot again, which must be the checkpoint bit for bit. This file must
not know what is made of a difference.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from app_trainer_sdk.checkpoints import inspect_checkpoint
from app_trainer_sdk.contract import SupervisedTrainer, Trainer
from app_trainer_sdk.descendants import die_with_parent
from app_trainer_sdk.files import write_json
from app_trainer_sdk.start import Start
from app_trainer_sdk.training.checkpoint import copied, load_checkpoint
from app_trainer_sdk.training.evaluation import measure_batch, measuring
from app_trainer_sdk.training.feed import to_device
from app_trainer_sdk.training.metrics import ratio, read_pairs
from app_trainer_sdk.training.opening import open_again

if TYPE_CHECKING:
    from app_trainer_sdk.handle import Run

#: Sections that are the driver's, which a trainer's snapshot does not hold.
DRIVER_SECTIONS = ("random",)


def main(arguments: Sequence[str]) -> int:
    """Restore one checkpoint and leave the answer."""
    start, checkpoint = Start.load(Path(arguments[0])), inspect_checkpoint(Path(arguments[1]))
    opened = open_again(start)
    saved = load_checkpoint(checkpoint)
    state = opened.trainer.begin(opened.run, saved)
    again = copied(opened.trainer.snapshot(state)).tensors
    expected = {name: each for name, each in saved.tensors.items() if name.split("/")[0] not in DRIVER_SECTIONS}
    write_json(
        Path(arguments[2]),
        {
            "tensors": len(expected),
            "different": different(expected, again),
            "evaluation": evaluate_longest(opened.trainer, opened.run, state),
        },
    )
    return 0


def different(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> list[str]:
    """Names that are missing on a side, or whose dtype, shape or bytes are not the same."""
    return [
        name
        for name in sorted(one.keys() | other.keys())
        if name not in one or name not in other or not _same(one[name], other[name])
    ]


def evaluate_longest(trainer: Trainer, run: Run, state: Any) -> dict[str, float | None]:
    """Metrics of the longest batch; for a loop of its own, of the first batches of the validation split."""
    if isinstance(trainer, SupervisedTrainer):
        assert run.device is not None
        batch = to_device(trainer.largest_batch(run, run.settings.microbatch), run.device)
        with measuring(state):
            terms = [measure_batch(trainer, run, state, batch, run.random("longest"))]
    else:
        with torch.no_grad():
            terms = list(itertools.islice(trainer.evaluate(run, state, "validation"), 2))
    told: dict[str, float | None] = {}
    for each in terms:
        told |= {name: ratio(*pair) for name, pair in read_pairs(each.metrics).items()}
    return told


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(sys.argv[1:]))
