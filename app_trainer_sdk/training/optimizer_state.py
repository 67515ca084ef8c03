"""Owns an optimizer's state: how it becomes named tensors, comes back bit for bit, is checked and described.

It must not know which optimizer was asked for, schedules or files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training.optim import parameter_names, required_dtypes
from app_trainer_sdk.values import JSON


def optimizer_snapshot(
    optimizer: torch.optim.Optimizer, root: nn.Module
) -> tuple[dict[str, Tensor], dict[str, JSON]]:
    """The optimizer's state as tensors named ``parameter/key`` and plain values by the same names.

    Tensors that share storage (bitsandbytes' quantisation maps do) are stored once; the values say which
    names stand for them. Beside them stands what the state is, in the words of :func:`describe_state`.
    """
    names = parameter_names(root)
    tensors: dict[str, Tensor] = {}
    values: dict[str, JSON] = {}
    aliases: dict[str, JSON] = {}
    seen: dict[int, str] = {}
    # By name: the optimizer's own order is another one after a resume, and of shared tensors the first is kept.
    for parameter, state in sorted(optimizer.state.items(), key=lambda each: names[each[0]]):
        for key, value in sorted(state.items()):
            name = f"{names[parameter]}/{key}"
            if not isinstance(value, Tensor):
                values[name] = value
            elif value.numel() and value.data_ptr() in seen:
                aliases[name] = seen[value.data_ptr()]
            else:
                tensors[name] = value
                seen[value.data_ptr()] = name
    check_state(optimizer, root)
    return tensors, {
        "values": values, "aliases": aliases, "class": type(optimizer).__name__,
        "described": describe_state(optimizer),
    }  # fmt: skip


def restore_optimizer(
    optimizer: torch.optim.Optimizer, root: nn.Module, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> None:
    """Put a snapshot back with dtypes intact: torch's ``load_state_dict`` would cast moments to the
    parameter's dtype (pytorch/ao#3314), so state is assigned directly.
    """
    if values["class"] != type(optimizer).__name__:
        raise InternalError(f"saved state of {values['class']}", expected=type(optimizer).__name__)
    by_name = {name: parameter for parameter, name in parameter_names(root).items()}
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
    check_state(optimizer, root)


def check_state(optimizer: torch.optim.Optimizer, root: nn.Module) -> None:
    """Hold the state there is against the dtypes it must have; parameters without any are passed over.

    Raises:
        InternalError: with the names, when something is quantised that must not be, or the other way round.
    """
    names = parameter_names(root)
    wrong = []
    for parameter, dtype in required_dtypes(optimizer, root).items():
        found = _moment_dtypes(parameter, optimizer.state.get(parameter, {}))
        if found and found != {dtype}:
            wrong.append(f"{names[parameter]} ({_told(found)} instead of {_told({dtype})})")
    if wrong:
        shown = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise InternalError(
            f"optimizer state of another dtype: {shown}",
            expected="8 bits, and 32 for embeddings and small tensors",
            setting="/hyperparameters/optim_8bit to false",
        )


def describe_state(optimizer: torch.optim.Optimizer) -> dict[str, JSON]:
    """What the optimizer really is: its class, and by group the dtypes of its state, measured.

    Each row of a group's ``state`` counts the tensors whose moments have this dtype (``none`` before their
    first step), their elements, and the bytes of all that is kept for them; what tensors share counts once.
    """
    seen: set[int] = set()
    groups: list[JSON] = [
        {
            "lr_scale": group.get("lr_scale", 1.0),
            "weight_decay": group.get("weight_decay", 0.0),
            "state": _rows(optimizer, group["params"], seen),
        }
        for group in optimizer.param_groups
    ]
    fused = bool(optimizer.defaults.get("fused"))
    return {"class": type(optimizer).__name__, "fused": fused, "groups": groups}


def described(values: Mapping[str, Any]) -> JSON:
    """The description a checkpoint's values carry; None where a trainer's own loop saved otherwise."""
    saved = values.get("optimizer")
    return saved.get("described") if isinstance(saved, Mapping) else None


def _rows(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], seen: set[int]) -> list[JSON]:
    rows: dict[str, dict[str, int]] = {}
    for parameter in parameters:
        state = optimizer.state.get(parameter, {})
        name = _told(_moment_dtypes(parameter, state))
        row = rows.setdefault(name, {"tensors": 0, "parameters": 0, "bytes": 0})
        row["tensors"] += 1
        row["parameters"] += parameter.numel()
        for value in state.values():
            if isinstance(value, Tensor) and value.data_ptr() not in seen:
                seen.add(value.data_ptr())
                row["bytes"] += value.nbytes
    return [{"dtype": name, **row} for name, row in sorted(rows.items())]


def _moment_dtypes(parameter: Tensor, state: Mapping[str, Any]) -> set[torch.dtype]:
    """Dtypes of what has the parameter's shape; the step count of a scalar is none of them."""
    moments = [each for key, each in state.items() if isinstance(each, Tensor) and key != "step"]
    return {each.dtype for each in moments if each.shape == parameter.shape}


def _told(dtypes: set[torch.dtype]) -> str:
    return " and ".join(sorted(str(each).removeprefix("torch.") for each in dtypes)) or "none"
