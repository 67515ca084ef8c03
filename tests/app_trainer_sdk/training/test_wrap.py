"""How a model is prepared: where it lives, what is recomputed or compiled, and under which names."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_helpers import CPU

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training.wrap import LossModule, wrap
from app_trainer_sdk.values import Batch, LossTerms, Modules


class Counting(nn.Module):
    """Counts how often it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.tanh(self.layer(x))


class Stub:
    """The one method of a trainer that wrapping needs."""

    def loss(self, modules, batch, random):
        return LossTerms(modules.root(batch.tensors["x"]).sum())


def wrapped(modules, **asked):
    return wrap(Stub(), modules, Hyperparameters(**asked), CPU)


BATCH = Batch({"x": torch.ones(3, 2)}, units=3.0)


def test_the_loss_is_enclosed():
    """Model and loss are one module, so that a parallel wrapper sees every call."""
    root = nn.Sequential(Counting())
    module = wrapped(Modules(root))

    assert isinstance(module, LossModule)
    assert [name for name, _ in module.named_parameters()] == ["root.0.layer.weight", "root.0.layer.bias"]
    assert module(BATCH, None).sum.requires_grad


def test_helpers_are_frozen():
    """I6: frozen helpers are in evaluation mode without gradients, and the root is in training mode."""
    teacher = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))
    root = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2)).eval()
    wrapped(Modules(root, frozen={"teacher": teacher}))
    before = teacher[0].running_mean.clone()
    teacher(torch.randn(8, 2))

    assert (teacher.training, root.training) == (False, True)
    assert not any(each.requires_grad for each in teacher.parameters())
    assert torch.equal(teacher[0].running_mean, before)


@pytest.mark.parametrize(("recompute", "calls"), [(False, 1), (True, 2)])
def test_recomputation(recompute, calls):
    """F4: a block's forward runs again in the backward pass when asked, and names stay."""
    block = Counting()
    module = wrapped(Modules(nn.Sequential(block), blocks=[block]), gradient_checkpointing=recompute)
    module(BATCH, None).sum.backward()

    assert block.calls == calls
    assert block.layer.weight.grad is not None
    assert sorted(dict(module.root.named_parameters())) == ["0.layer.bias", "0.layer.weight"]


def test_recomputation_needs_blocks():
    """A model that names no blocks cannot be recomputed; the sentence says where to name them."""
    with pytest.raises(InternalError, match=r"names no blocks.*change /hyperparameters/gradient_checkpointing"):
        wrapped(Modules(nn.Linear(2, 2)), gradient_checkpointing=True)


def test_auto_is_decided_before():
    """Settings that are still ``auto`` change nothing: the plan decides, not the wrapper."""
    block = Counting()
    module = wrapped(Modules(nn.Sequential(block), blocks=[block]))
    module(BATCH, None).sum.backward()

    assert block.calls == 1
