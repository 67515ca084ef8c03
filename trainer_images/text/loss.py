"""Owns the loss: logits exist only at trained tokens, and only a chunk of them at a time.

It must not know data or LoRA. The output layer is read as a weight and never called.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

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
    if hasattr(functional, "linear_cross_entropy"):
        options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=_chunk_size(hidden))
        return functional.linear_cross_entropy(hidden, weight, targets, reduction="sum", options=options)
    return _cross_entropy_in_chunks(hidden, weight, targets)


def _cross_entropy_in_chunks(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The same for torch before 2.13, which has no fused loss: backward makes each chunk's logits again."""
    total = hidden.new_zeros((), dtype=torch.float32)
    for part, target in _chunks(hidden, targets):
        total = total + checkpoint(_chunk_loss, part, weight, target, use_reentrant=False)
    return total


def _chunk_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight).float(), targets, reduction="sum")


def _chunks(hidden: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    size = _chunk_size(hidden)
    return zip(hidden.split(size), targets.split(size), strict=True)


def _chunk_size(hidden: Tensor) -> int:
    return CHUNK_CPU if kind_of(hidden) == "cpu" else CHUNK_GPU
