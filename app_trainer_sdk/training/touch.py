"""Owns the first touch of the device in a rank: memory and one tiny step, before anything large is loaded.

What the driver says of a card is known already; only the card itself can say that it computes. Nothing is left
behind: no random number is drawn and no memory kept. This file must not know models or plans.
"""

from __future__ import annotations

import torch
from torch import nn

from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training.optim import build_optimizer

TOUCHED_BYTES = 256 << 20
#: The smallest tensor that 8-bit optimizers quantise.
ELEMENTS = 4096


def touch_device(device: torch.device, settings: Hyperparameters | None) -> None:
    """Allocate, write and read 256 MiB, unless on the CPU, and make one step of the chosen optimizer.

    Args:
        device: where the rank will train.
        settings: with every ``"auto"`` decided; None for a trainer that has its own optimizer.

    Raises:
        HardwareUnfit: one of them failed, with the cause.
    """
    try:
        if device.type != "cpu":
            _hold_memory(device)
        if settings is not None:
            _make_step(device, settings)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:300]}"
        raise HardwareUnfit(
            f"{device} does not do what training needs: {reason}",
            expected=f"{TOUCHED_BYTES >> 20} MiB that can be written, and one step of the optimizer",
            setting="the machine, or /hyperparameters/optim_8bit to false",
        ) from error


def _hold_memory(device: torch.device) -> None:
    held = torch.full((TOUCHED_BYTES,), 7, dtype=torch.uint8, device=device)
    if int(held[-1]) != 7 or int(held[0]) != 7:
        raise RuntimeError("memory that was written reads otherwise")
    del held  # the model needs it next
    torch.cuda.empty_cache()


def _make_step(device: torch.device, settings: Hyperparameters) -> None:
    root = nn.Module()
    root.weight = nn.Parameter(torch.ones(ELEMENTS, device=device))
    root.weight.grad = torch.ones_like(root.weight)
    # The job's own rate may be too small to see.
    settings = settings.model_copy(update={"learning_rate": 0.5})
    optimizer = build_optimizer([{"params": [root.weight], "weight_decay": 0.0}], settings, device, root)
    optimizer.step()
    if bool((root.weight >= 1.0).any()) or not bool(root.weight.isfinite().all()):
        raise RuntimeError(f"a step of {type(optimizer).__name__} left weights where they were, or not finite")
