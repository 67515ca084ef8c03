"""Which tensors of a model are state, and that they come back in place."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training.model_state import Buffers, load_tensors, saved_tensors, ties


class Model(nn.Module):
    """A tied weight, a frozen one, a buffer of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 2)
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.embed.weight
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("scratch", torch.zeros(1), persistent=False)


NAMES = {
    "embed.weight", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var",
    "norm.num_batches_tracked",
}  # fmt: skip


def test_what_is_saved():
    """B8: trainable parameters once, persistent buffers, nothing frozen, nothing of the moment."""
    assert saved_tensors(Model()).keys() == NAMES
    assert ties(Model()) == {"head.weight": "embed.weight"}


def test_loading_is_in_place():
    """B8: after loading, ties still tie and an optimizer's parameters are the same objects."""
    model, other = Model(), Model()
    weight = model.embed.weight
    load_tensors(model, saved_tensors(other))

    assert model.head.weight is model.embed.weight is weight
    assert torch.equal(weight, other.embed.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda saved: saved.pop("embed.weight"), "embed.weight is missing in the checkpoint"),
        (lambda saved: saved.update(extra=torch.ones(1)), "extra is missing in the model"),
        (
            lambda saved: saved.update({"norm.bias": torch.ones(3)}),
            r"norm.bias was saved as torch.float32 \(3,\)",
        ),
        (
            lambda saved: saved.update({"norm.bias": torch.ones(2).half()}),
            "norm.bias was saved as torch.float16",
        ),
    ],
)
def test_what_does_not_fit(change, message):
    """B6: a name too few or too many, another shape or dtype: an error that names the tensor."""
    saved = saved_tensors(Model())
    change(saved)

    with pytest.raises(InternalError, match=message):
        load_tensors(Model(), saved)


def test_buffers_go_back():
    """N1: statistics moved by a step that does not count are put back, replaced buffers included."""
    model = Model()
    buffers = Buffers(model)
    copies = buffers.copies()
    model.norm(torch.randn(5, 2))
    model.norm.running_var = model.norm.running_var * 3
    buffers.put_back(copies)

    assert model.norm.running_mean.tolist() == [0.0, 0.0]
    assert model.norm.running_var.tolist() == [1.0, 1.0]
    assert int(model.norm.num_batches_tracked) == 0
