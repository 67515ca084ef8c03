"""Trainers that hold still in the middle of training until somebody asks them to stop or kills them.

What a test does to a running job then never comes too late, however busy the machine is. For processes whose
``PYTHONPATH`` is :func:`finding_held_trainers`; nothing else differs from the trainer that is held.
"""

from __future__ import annotations

import os
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.testing.toys import ToyTrainer
from trainer_images.text.trainer import TextTrainer

#: After so many microbatches of a process the next one waits.
VARIABLE = "HELD_AFTER_MICROBATCHES"
TOY, TEXT = "held_trainers:HeldToy", "held_trainers:HeldText"
#: Nobody came: the test has failed already, and tells so.
MOST_SECONDS = 300.0


def finding_held_trainers() -> str:
    """``PYTHONPATH`` with this file's folder."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))


def holding(microbatches: int) -> dict[str, str]:
    """The variable of a start that holds after so many microbatches; one without it goes on."""
    return {VARIABLE: str(microbatches)}


def held(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The same loss, which waits when it is its turn; a kill or a signal ends the wait."""
    made = 0

    def held_loss(self: Any, modules: Any, batch: Any, random: Any) -> Any:
        import torch

        nonlocal made
        if torch.is_grad_enabled():
            made += 1
            if made == int(os.environ.get(VARIABLE, "0")) + 1 > 1:
                _wait_for_a_wish()
        return loss(self, modules, batch, random)

    return held_loss


def _wait_for_a_wish() -> None:
    from app_trainer_sdk.training import interrupts

    limit = time.monotonic() + MOST_SECONDS
    while time.monotonic() < limit and (interrupts._token is None or interrupts._token.asked is None):
        time.sleep(0.005)


def _holding(trainer: type[SupervisedTrainer], name: str) -> Any:
    """A trainer is final: this one has all its parts."""
    parts = {part: value for part, value in vars(trainer).items() if part[:2] != "__" and part != "_abc_impl"}
    parts |= {"__module__": __name__, "__doc__": trainer.__doc__, "loss": held(trainer.loss)}
    return types.new_class(name, (SupervisedTrainer,), exec_body=lambda body: body.update(parts))


HeldToy = _holding(ToyTrainer, "HeldToy")
HeldText = _holding(TextTrainer, "HeldText")
