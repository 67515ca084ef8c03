"""Owns the loss: logits exist only at trained tokens, and only a chunk of them at a time.

It must not know data or LoRA. The output layer is read as a weight and never called.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from app_trainer_sdk.training.device import kind_of
from app_trainer_sdk.values import Batch, LossTerms, Modules
from trainer_images.text.model import language_model
from trainer_images.text.packing import RowLayout

#: Trained tokens whose logits exist at once. On two CPU cores 128 was as fast as all at once, in a third of
#: the memory (vocabulary 49,152); a GPU needs larger pieces to stay busy.
CHUNK_CPU, CHUNK_GPU = 128, 1024


def token_loss(modules: Modules, batch: Batch) -> LossTerms:
    """Cross entropy in nats, summed over the trained tokens. A batch without any gives zero, never NaN."""
    hidden, weight = hidden_states(modules, batch)
    targets = batch.tensors["targets"]
    if not len(targets):
        return LossTerms(sum=hidden.sum())
    return LossTerms(sum=_cross_entropy(hidden, weight, targets))


def token_loss_and_accuracy(modules: Modules, batch: Batch) -> LossTerms:
    """The same loss, and the metric ``token_accuracy``: how often the likeliest token was the right one.

    For evaluation: it keeps nothing for a backward pass.
    """
    with torch.no_grad():
        hidden, weight = hidden_states(modules, batch)
        loss = hidden.new_zeros((), dtype=torch.float32)
        right = torch.zeros((), dtype=torch.int64, device=hidden.device)
        for part, target in _chunks(hidden, batch.tensors["targets"]):
            logits = functional.linear(part, weight).float()
            loss += functional.cross_entropy(logits, target, reduction="sum")
            right += (logits.argmax(-1) == target).sum()
    return LossTerms(sum=loss, metrics={"token_accuracy": (right, batch.units)})


def hidden_states(modules: Modules, batch: Batch) -> tuple[Tensor, Tensor]:
    """What predicts the trained tokens.

    Returns:
        hidden states of shape (units, width), and the output layer's weight (vocabulary, width), both in the
        precision of the forward pass.
    """
    model = language_model(modules.root)
    tensors = batch.tensors
    out = model.get_decoder()(
        input_ids=tensors["input_ids"],
        position_ids=tensors["position_ids"],
        row_layout=RowLayout(batch.host["lengths"], tensors["row_starts"]),
        use_cache=False,
    )
    hidden = out.last_hidden_state[0].index_select(0, tensors["positions"])
    weight = model.get_output_embeddings().weight
    # Autocast reaches a linear layer, but not the fused loss below.
    kind = hidden.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    return hidden.to(dtype), weight.to(dtype)


def _cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """By torch's fused function in fp32. In 16 bits that adds up the loss itself in 16 bits: to three digits in
    bf16, and to infinity in fp16 from 65,504 nats on, which a microbatch of a few thousand tokens has.
    """
    if kind_of(hidden) == "cpu":  # whose products in 16 bits may take thirty times as long
        hidden, weight = hidden.float(), weight.float()
    if hidden.dtype == torch.float32 and hasattr(functional, "linear_cross_entropy"):
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=_chunk_size(hidden))
        return functional.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)
    loss: Tensor = _CrossEntropyInChunks.apply(hidden, weight, targets)  # type: ignore[no-untyped-call]
    return loss


class _CrossEntropyInChunks(torch.autograd.Function):
    """Cross entropy that computes its gradient chunk by chunk beside the loss, which is summed up in fp32.

    No logits are kept or made again. For fp32 too where torch, before 2.13, has no fused function.
    """

    @staticmethod
    def forward(context: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """The sum, in fp32."""
        by_hidden = torch.empty_like(hidden) if context.needs_input_grad[0] else None
        by_weight = torch.zeros_like(weight) if context.needs_input_grad[1] else None
        total, start = hidden.new_zeros((), dtype=torch.float32), 0
        for part, target in _chunks(hidden, targets):
            logits = functional.linear(part, weight).float()
            total += _to_slopes(logits, target.unsqueeze(1))
            slopes = logits.to(part.dtype)
            del logits  # before the next chunk's
            if by_hidden is not None:
                torch.mm(slopes, weight, out=by_hidden[start : start + len(part)])
            if by_weight is not None:
                by_weight.addmm_(slopes.T, part)
            del slopes
            start += len(part)
        context.save_for_backward(by_hidden, by_weight)
        return total

    @staticmethod
    def backward(context: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        """What was computed beside the loss, scaled in place."""
        (scale,) = gradients
        return *(None if each is None else each.mul_(scale) for each in context.saved_tensors), None


def _to_slopes(logits: Tensor, targets: Tensor) -> Tensor:
    """Replace logits by the loss's slope at each of them; returns the summed loss. Takes no second copy."""
    logits -= logits.amax(1, keepdim=True)
    right = logits.gather(1, targets)
    norms = logits.exp_().sum(1, keepdim=True)
    logits /= norms
    logits.scatter_(1, targets, logits.gather(1, targets) - 1.0)
    return (norms.log_() - right).sum()


def _chunks(hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    size = _chunk_size(hidden)
    return zip(hidden.split(size), targets.split(size), strict=True)


def _chunk_size(hidden: Tensor) -> int:
    return CHUNK_CPU if kind_of(hidden) == "cpu" else CHUNK_GPU
