"""Owns the one order in which a model is changed for training: device, compilation, recomputation, parallel.

The order matters: recomputation lies around what is compiled, and gradients are synchronised around both.
Nothing here renames a parameter, so checkpoints carry canonical names by construction. This file must not know
updates or optimizers.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training.compiled import compile_blocks
from app_trainer_sdk.training.randomness import Random
from app_trainer_sdk.training.replica import Replica
from app_trainer_sdk.training.team import Team
from app_trainer_sdk.values import Batch, LossTerms, Modules

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run


_NOTHING = contextlib.nullcontext()


class LossModule(nn.Module):
    """Model and loss in one module: calling a submodule past a parallel wrapper would train ranks apart."""

    def __init__(self, trainer: SupervisedTrainer, modules: Modules) -> None:
        super().__init__()
        self.root = modules.root
        self._trainer = trainer
        self._modules_value = modules

    def forward(self, batch: Batch, random: Random) -> LossTerms:
        """The trainer's loss."""
        return self._trainer.loss(self._modules_value, batch, random)


def wrap(
    trainer: SupervisedTrainer, modules: Modules, settings: Hyperparameters, device: torch.device, *,
    backend: str | Callable[..., Any] = "inductor",
) -> LossModule:  # fmt: skip
    """Prepare ``modules`` for training, in place, and enclose them with the loss. ``backend`` compiles."""
    # 1. Device first: the optimizer is built over what lives there.
    _move(modules.root, device)
    for module in modules.frozen.values():
        _move(module, device)
        module.eval().requires_grad_(False)
    _begin_training_mode(modules.root)
    # 2. Compilation before recomputation: in a recomputed block torch.compile gives up at the first call it
    #    cannot look into, and runs the whole block uncompiled. This way round dropout stays the same as well.
    if settings.torch_compile is True:
        compile_blocks(_blocks(modules, "torch_compile"), modules.root, settings, backend=backend)
    # 3. Recomputation around what is compiled.
    if settings.gradient_checkpointing is True:
        for block in _blocks(modules, "gradient_checkpointing"):
            _recompute(block)
    # 4. The loss inside the module that a parallel wrapper will enclose.
    return LossModule(trainer, modules)


def replicate(trainer: SupervisedTrainer, loss: LossModule, team: Team) -> Replica | None:
    """Let the gradients of several ranks become one; around all the rest, and once saved weights are there."""
    # 5. Outermost, since what is called past it would train ranks apart.
    if team.size == 1:
        return None
    return Replica(loss, team, may_lack=bool(trainer.may_lack_gradient))


def autocast(run: Run) -> contextlib.AbstractContextManager[Any]:
    """The precision of the forward pass."""
    if run.dtype is None or run.dtype == torch.float32:
        return _NOTHING
    assert run.device is not None
    return torch.autocast(run.device.type, dtype=run.dtype)


def _move(module: nn.Module, device: torch.device) -> None:
    """To the device, unless it is there: even then ``Module.to`` replaces tensors that hold no data."""
    if any(each.device != device for each in [*module.parameters(), *module.buffers()]):
        module.to(device)


def _begin_training_mode(root: nn.Module) -> None:
    """Training mode, except for batch norms whose parameters are frozen: their statistics are weights too."""
    root.train()
    for module in root.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            own = [*module.parameters()]
            if own and not any(each.requires_grad for each in own):
                module.eval()


def _blocks(modules: Modules, setting: str) -> list[nn.Module]:
    blocks = list(modules.blocks)
    if not blocks and setting == "torch_compile":
        return [modules.root]
    if not blocks:
        raise InternalError(
            "the model names no blocks to recompute", expected="Modules(root, blocks=[...]) from build_model",
            setting=f"/hyperparameters/{setting} to false",
        )  # fmt: skip
    return blocks


def _recompute(block: nn.Module) -> None:
    """Recompute the block's activations in the backward pass.

    The non-reentrant form: the other leaves adapters behind frozen inputs untrained without a word.
    The instance's ``forward`` is replaced, so no name changes.
    """
    block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=True)
