"""Owns what is made again in the backward pass instead of kept: results that no matrix product is needed for.

A block of a causal language model keeps, between forward and backward, its norms' outputs, the activation,
its product with the gate, and the attention's rows laid end to end: two fifths of what it keeps, and each
follows from something kept anyway by elementwise work. Here autograd is given a recipe in their place. The
recipe runs the same operations on the same values, so gradients do not change by a bit. Recomputing whole
blocks (``gradient_checkpointing``) saves more and costs a third of the time; this costs a few per cent.

This file must not know LoRA, data or losses.
"""

from __future__ import annotations

import contextvars
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

#: What a block must have to be made lean: transformers' names for the norms and the gated layers.
NORMS = ("input_layernorm", "post_attention_layernorm")
GATED = ("gate_proj", "up_proj", "down_proj", "act_fn")


class Recipe:
    """How a tensor is made again, and the tensor once it was: query, key and value ask for the same norm.

    Autograd drops the recipe with the last node that needs it, and the tensor goes with it.
    """

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self._make = make
        self._made: Tensor | None = None

    def made(self) -> Tensor:
        """The tensor; the same one each time."""
        if self._made is None:
            with torch.no_grad():
                self._made = self._make()
        return self._made


class Recipes:
    """Recipes of one block's forward pass, by the memory of the tensor they make.

    Tensors are held until the block's forward ends, so that no other tensor can take the same memory and be
    mistaken for one of them.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Recipe]] = {}

    def add(self, tensor: Tensor, recipe: Recipe) -> None:
        """``recipe`` makes ``tensor`` again, from what is kept anyway."""
        self._known[_memory(tensor)] = (tensor, recipe)

    def forget(self) -> None:
        """Let go of the tensors; recipes that autograd keeps stay good."""
        self._known.clear()

    def pack(self, saved: Tensor) -> Tensor | tuple[Recipe, torch.Size]:
        """What autograd keeps: the recipe of a known tensor (or of a contiguous view of all of it)."""
        tensor, recipe = self._known.get(_memory(saved), (None, None))
        if tensor is None or recipe is None or tensor.numel() != saved.numel() or not saved.is_contiguous():
            return saved
        return recipe, saved.shape


def _memory(tensor: Tensor) -> tuple[int, int]:
    """Which memory a tensor lies in; its storage's identity, since tensors without data have no address."""
    return tensor.untyped_storage()._cdata, tensor.storage_offset()


_recipes: contextvars.ContextVar[Recipes | None] = contextvars.ContextVar("recipes", default=None)


def install(blocks: Sequence[nn.Module]) -> None:
    """Make the blocks keep less, in place; a block of another build is left as it is."""
    for block in blocks:
        norms = [getattr(block, name, None) for name in NORMS]
        mlp = getattr(block, "mlp", None)
        if None in norms or not all(hasattr(mlp, name) for name in GATED):
            continue
        block.forward = functools.partial(_block, block.forward)
        mlp.forward = functools.partial(_gated, mlp)
        for norm in norms:
            norm.forward = functools.partial(_norm, norm.forward)


def keep_recipe(tensor: Tensor, make: Callable[[], Tensor]) -> None:
    """Tell the block under way how ``tensor`` can be made again; outside of one nothing happens."""
    recipes = _recipes.get()
    if recipes is not None:
        recipes.add(tensor, Recipe(make))


def _block(forward: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **keywords)
    recipes = Recipes()
    before = _recipes.set(recipes)
    try:
        with torch.autograd.graph.saved_tensors_hooks(recipes.pack, _unpack):
            return forward(*arguments, **keywords)
    finally:
        _recipes.reset(before)
        recipes.forget()  # autograd holds on to the hooks, and with them to what they know


def _norm(forward: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    normed = forward(hidden)
    keep_recipe(normed, lambda: forward(hidden))
    return normed


def _gated(mlp: Any, hidden: Tensor) -> Tensor:
    gate, up = mlp.gate_proj(hidden), mlp.up_proj(hidden)
    activated = mlp.act_fn(gate)
    keep_recipe(activated, lambda: mlp.act_fn(gate))
    product = activated * up
    keep_recipe(product, lambda: mlp.act_fn(gate) * up)
    down: Tensor = mlp.down_proj(product)
    return down


def _unpack(kept: Tensor | tuple[Recipe, torch.Size]) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    recipe, shape = kept
    return recipe.made().reshape(shape)
