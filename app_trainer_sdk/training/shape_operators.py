"""Owns a short way for the commonest operators on tensors without data: shapes in, shape out.

torch's fake mode looks every call up by all that could matter, which takes several times as long as finding the
result. The operators named here read shapes, strides and dtypes alone and have a kernel in C++ that does so;
where anything else could matter the fake mode is asked. This file must not know who counts what they make.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager

_aten = torch.ops.aten

#: Views, products and casts: most calls of a rehearsal. (What torch computes in Python would gain nothing.)
_OPERATORS = {
    _aten.view.default, _aten._unsafe_view.default, _aten.t.default, _aten.transpose.int, _aten.slice.Tensor,
    _aten.unsqueeze.default, _aten.expand.default, _aten.select.int, _aten.detach.default,
    _aten.mm.default, _aten._to_copy.default,
}  # fmt: skip


def on_shapes(function: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
    """What an operator returns for tensors without data; ``NotImplemented`` where the fake mode must look."""
    if function not in _OPERATORS:
        return NotImplemented
    tensors: list[Any] = [each for each in arguments if isinstance(each, Tensor)]
    if not all(type(each) is FakeTensor and each.constant is None for each in tensors):
        return NotImplemented  # a value is known, or there is data
    mode, device = tensors[0].fake_mode, tensors[0].fake_device
    named = {name: value for name, value in keywords.items() if name != "dtype"}
    stays = not named or named == {"layout": torch.strided, "device": device}
    if not stays or any(each.fake_device != device for each in tensors):
        return NotImplemented
    given = {"dtype": keywords["dtype"]} if "dtype" in keywords else {}
    with in_kernel_invocation_manager(mode):
        made = function(*arguments, **given)
    return FakeTensor(mode, made, device)
