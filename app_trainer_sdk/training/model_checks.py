"""Owns what a model must be before it trains: what would fail later is told when it is built.

It must not know how a model is wrapped, or what an update does.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters


def check_model(trainer: SupervisedTrainer, settings: Hyperparameters, root: nn.Module) -> None:
    """Refuse a model that cannot train, or could not be resumed.

    Raises:
        InternalError: which parameter or module, and what to change.
    """
    for name, parameter in root.named_parameters():
        _check_parameter(name, parameter, settings)
    for name, module in root.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise InternalError(
                f"the embedding {name} has sparse gradients", expected="dense ones", setting="sparse=True"
            )
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training and trainer.minimum_rows < 2:
            raise InternalError(
                f"{name} is a batch norm, which cannot train on a single row",
                expected=f"minimum_rows = 2 in {type(trainer).__name__}",
            )


def _check_parameter(name: str, parameter: nn.Parameter, settings: Hyperparameters) -> None:
    if is_lazy(parameter):
        raise InternalError(
            f"{name} has no shape before the first forward", expected="a model that a checkpoint fits into",
            setting="the lazy module in build_model, or call it there once",
        )  # fmt: skip
    if not parameter.requires_grad:
        return
    if any(step == 0 and size > 1 for step, size in zip(parameter.stride(), parameter.shape, strict=True)):
        raise InternalError(
            f"elements of {name} share memory, as expand leaves them", expected="each its own",
            setting="build_model to clone what it expands",
        )  # fmt: skip
    # Under a loss scale weights train in fp32: an fp16 gradient cannot be unscaled without loss.
    if settings.mixed_precision == "fp16" and parameter.dtype == torch.float16:
        raise InternalError(
            f"{name} would train in fp16 under a loss scale", expected="trainable parameters in fp32",
            setting="build_model to keep them in fp32, or /hyperparameters/mixed_precision",
        )  # fmt: skip
