"""A rank's copy of the model with its loss: what DDP is told and asked."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed
from torch import nn
from torch_helpers import in_new_process

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training.feed import Microbatch
from app_trainer_sdk.training.replica import Replica
from app_trainer_sdk.training.team import Team
from app_trainer_sdk.values import Batch, LossTerms


class Loss(nn.Module):
    """Two weights, of which a batch may reach one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(2))
        self.two = nn.Parameter(torch.ones(2))

    def forward(self, batch, random):
        total = (self.one * batch).sum()
        return LossTerms(total if random else total + self.two.sum())


def microbatch(units):
    return Microbatch(Batch({}, units=units), 0, 0, 1)


def _alone(folder):
    """Everything in one process that is a group by itself."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = torch.distributed.FileStore(str(folder / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    loss = Loss()
    replica = Replica(loss, Team())
    told = {"at first": [each.grad for each in loss.parameters()], "factor": replica.factor}
    told["overlaps"] = [
        replica.overlaps(batches, first=first)
        for batches, first in (
            ([], False),
            ([microbatch(0)], False),
            ([microbatch(2)], False),
            ([microbatch(2)], True),
        )
    ]
    with replica.quiet():
        replica(torch.tensor([3.0, 4.0]), False).sum.backward()
    replica.reduce(first=False)
    told["reduced"] = loss.one.grad.tolist()
    for each in loss.parameters():
        each.grad = None
    with replica.quiet():
        replica(torch.tensor([3.0, 4.0]), True).sum.backward()
    replica.reduce(first=True)
    told["away"] = loss.two.grad is None
    replica(torch.tensor([3.0, 4.0]), True).sum.backward()
    with pytest.raises(InternalError, match="may_lack_gradient"):
        replica.refuse_unfinished()
    torch.distributed.destroy_process_group()
    return told


def test_gradients_are_those_of_the_loss_and_what_nobody_has_stays_away(tmp_path):
    """None is there before the first update; the last backward carries them where it can."""
    told = in_new_process(_alone, tmp_path)

    assert told["at first"] == [None, None]
    assert told["factor"] == 1.0
    assert told["overlaps"] == [False, False, True, False]
    assert told["reduced"] == [3.0, 4.0]
    assert told["away"]
