"""Owns which of a model's tensors are state: what a checkpoint carries, how it comes back, what may be undone.

Names are the model's own. This file must not know optimizers, files or what the tensors mean.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from app_trainer_sdk.errors import InternalError


def saved_tensors(root: nn.Module) -> dict[str, Tensor]:
    """What of a model is saved, by canonical name: trainable parameters once, and persistent buffers."""
    trainable = {name: each for name, each in root.named_parameters() if each.requires_grad}
    kept = set(root.state_dict(keep_vars=True))
    buffers = {name: each for name, each in root.named_buffers() if name in kept}
    return {name: tensor.detach() for name, tensor in (trainable | buffers).items()}


def ties(root: nn.Module) -> dict[str, str]:
    """Other names of trainable parameters that stand in several places, each with its canonical name."""
    first = {parameter: name for name, parameter in root.named_parameters() if parameter.requires_grad}
    everywhere = root.named_parameters(remove_duplicate=False)
    return {name: first[each] for name, each in everywhere if each in first and first[each] != name}


def load_tensors(root: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Copy saved tensors into the model, in place, so that ties and wrappers stay.

    Raises:
        InternalError: a name is missing on either side, or a shape or dtype differs.
    """
    here = saved_tensors(root)
    for name in sorted(here.keys() ^ saved.keys()):
        where = "the checkpoint" if name in here else "the model"
        raise InternalError(f"{name} is missing in {where}", expected="the same tensors on both sides")
    with torch.no_grad():
        for name, tensor in here.items():
            other = saved[name]
            if tensor.shape != other.shape or tensor.dtype != other.dtype:
                raise InternalError(
                    f"{name} was saved as {other.dtype} {tuple(other.shape)}",
                    expected=f"{tensor.dtype} {tuple(tensor.shape)}",
                )
            tensor.copy_(other)


class Buffers:
    """The buffers a checkpoint carries, to copy before a step and put back when it does not count.

    Batch norm moves its statistics in the forward pass, before anybody knows whether the update is applied.
    Remembers where a buffer is held and not the tensor: a model may replace it.
    """

    def __init__(self, root: nn.Module) -> None:
        self._places = [
            (module, name)
            for module in root.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]

    def copies(self) -> list[Tensor]:
        """The buffers as they are now."""
        return [module.get_buffer(name).clone() for module, name in self._places]

    def put_back(self, copies: list[Tensor]) -> None:
        """Make them as they were."""
        with torch.no_grad():
            for (module, name), copy in zip(self._places, copies, strict=True):
                module.get_buffer(name).copy_(copy)
