"""Owns optimizers: which one is built, and how its state becomes named tensors and comes back bit for bit.

Only this file knows bitsandbytes. It must not know schedules or when a step is due.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.values import JSON

#: Keys of a parameter group that a trainer may set beside ``params``.
GROUP_KEYS = frozenset({"params", "lr_scale", "weight_decay"})


def build_optimizer(
    groups: Sequence[Mapping[str, Any]], settings: Hyperparameters, device: torch.device
) -> torch.optim.Optimizer:
    """The optimizer the settings ask for; fused where the device has it.

    Args:
        groups: from ``parameter_groups``: ``params`` and optionally ``lr_scale`` (multiplies the schedule)
            and ``weight_decay``.
        settings: resolved hyperparameters.
        device: where the parameters live.
    """
    prepared = [_prepare_group(group, settings) for group in groups]
    prepared = [group for group in prepared if group["params"]]
    if not prepared:
        raise InternalError("no parameter trains", expected="at least one parameter with requires_grad")
    rate = settings.learning_rate
    if settings.optimizer == "sgd":
        return torch.optim.SGD(prepared, lr=rate, momentum=settings.beta1, fused=_can_fuse(prepared, device))
    betas = (settings.beta1, settings.beta2)
    if settings.optim_8bit is True:
        return _eight_bit_adamw(prepared, rate, betas, settings.epsilon)
    return torch.optim.AdamW(
        prepared, lr=rate, betas=betas, eps=settings.epsilon, fused=_can_fuse(prepared, device)
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group, times its ``lr_scale``."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


def optimizer_snapshot(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]
) -> tuple[dict[str, Tensor], dict[str, JSON]]:
    """The optimizer's state as tensors named ``parameter/key`` and plain values by the same names.

    Tensors that share storage (bitsandbytes' quantisation maps do) are stored once; the values say which
    names stand for them.
    """
    tensors: dict[str, Tensor] = {}
    values: dict[str, JSON] = {}
    aliases: dict[str, JSON] = {}
    seen: dict[int, str] = {}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            name = f"{names[parameter]}/{key}"
            if not isinstance(value, Tensor):
                values[name] = value
            elif value.numel() and value.data_ptr() in seen:
                aliases[name] = seen[value.data_ptr()]
            else:
                tensors[name] = value
                seen[value.data_ptr()] = name
    return tensors, {"values": values, "aliases": aliases, "class": type(optimizer).__name__}


def restore_optimizer(
    optimizer: torch.optim.Optimizer,
    names: Mapping[Tensor, str],
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any],
) -> None:
    """Put a snapshot back with dtypes intact: torch's ``load_state_dict`` would cast moments to the
    parameter's dtype (pytorch/ao#3314), so state is assigned directly.
    """
    if values["class"] != type(optimizer).__name__:
        raise InternalError(f"saved state of {values['class']}", expected=type(optimizer).__name__)
    by_name = {name: parameter for parameter, name in names.items()}
    aliases: Mapping[str, str] = values["aliases"]
    shared: dict[str, Tensor] = {}
    for name in [*tensors, *aliases, *values["values"]]:
        parameter_name, key = name.rsplit("/", 1)
        parameter = by_name[parameter_name]
        state = optimizer.state[parameter]
        if name in values["values"]:
            state[key] = values["values"][name]
            continue
        source = aliases.get(name, name)
        if source not in shared:
            # Fused kernels keep the step count where the parameter is; plain ones keep it on the host.
            keep_on_host = key == "step" and not optimizer.defaults.get("fused")
            device = "cpu" if keep_on_host else parameter.device
            shared[source] = tensors[source].to(device, copy=True)
        state[key] = shared[source]


def parameter_names(root: nn.Module) -> dict[Tensor, str]:
    """Canonical name of every trainable parameter of ``root``; a tied one has its first name."""
    return {parameter: name for name, parameter in root.named_parameters() if parameter.requires_grad}


def _prepare_group(group: Mapping[str, Any], settings: Hyperparameters) -> dict[str, Any]:
    unknown = set(group) - GROUP_KEYS
    if unknown:
        raise InternalError(
            f"parameter_groups returned the key {sorted(unknown)[0]!r}", expected=", ".join(sorted(GROUP_KEYS))
        )
    params: Iterable[nn.Parameter] = group["params"]
    return {
        "params": [each for each in params if each.requires_grad],
        "lr_scale": group.get("lr_scale", 1.0),
        "weight_decay": group.get("weight_decay", settings.weight_decay),
    }


def _eight_bit_adamw(
    groups: Sequence[dict[str, Any]], rate: float, betas: tuple[float, float], epsilon: float
) -> torch.optim.Optimizer:
    """AdamW with block-wise 8-bit state; tensors below 4,096 elements keep 32 bits."""
    import bitsandbytes

    library: Any = bitsandbytes  # its annotations are not complete
    optimizer: torch.optim.Optimizer = library.optim.AdamW8bit(groups, lr=rate, betas=betas, eps=epsilon)
    return optimizer


def _can_fuse(groups: Sequence[Mapping[str, Any]], device: torch.device) -> bool:
    """Torch's fused kernels take floating-point parameters on CUDA.

    On the CPU only full precision: in torch 2.13 its fused SGD writes wrong momentum, other at each run, for
    bf16 and fp16 parameters. It may go when ``test_optim.py`` passes without it.
    """
    everything = [parameter for group in groups for parameter in group["params"]]
    if device.type == "cpu":
        return all(each.dtype in (torch.float32, torch.float64) for each in everything)
    return device.type == "cuda" and all(torch.is_floating_point(each) for each in everything)
