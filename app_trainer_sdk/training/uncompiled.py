"""Owns optimizers that do not import torch's compiler where nothing is compiled.

Torch's optimizers tell the compiler where to look away, and import it to do so: a second and a half of
processor time between a process's start and its first update, for nobody. This file must not know settings.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import SGD, AdamW, Optimizer

#: What torch wraps: each kind's step, and what all kinds inherit.
WRAPPED = (
    (AdamW, "step"), (SGD, "step"), (Optimizer, "add_param_group"), (Optimizer, "zero_grad"),
    (Optimizer, "state_dict"), (Optimizer, "load_state_dict"),
)  # fmt: skip


def leave_compiler_out() -> None:
    """From here on AdamW and SGD work without the compiler until somebody imports it. Again changes nothing.

    It may go when ``torch.optim.AdamW(...).step()`` imports no ``torch._dynamo`` by itself.
    """
    for kind, name in WRAPPED:
        method = getattr(kind, name)
        plain = getattr(method, "__wrapped__", None)  # absent where torch wraps it no more
        if plain is None or getattr(method, "hooked", False) or hasattr(method, "leaves_compiler_out"):
            continue  # of a kind that was built before the step is as it is
        setattr(kind, name, _uncompiled(method, plain, steps=name == "step"))


def _uncompiled(method: Callable[..., Any], plain: Callable[..., Any], *, steps: bool) -> Callable[..., Any]:
    """``method`` once the compiler is there; before, what it wraps, with gradients off in a step as there."""

    @functools.wraps(method)
    def call(self: Optimizer, *arguments: Any, **keywords: Any) -> Any:
        if "torch._dynamo" in sys.modules:
            return method(self, *arguments, **keywords)
        with torch.set_grad_enabled(self.defaults["differentiable"]) if steps else contextlib.nullcontext():
            return plain(self, *arguments, **keywords)

    call.leaves_compiler_out = True  # type: ignore[attr-defined]
    return call
