"""The twin of ``test_ledger.py`` on a card: what its allocator says is given back, and who keeps the rest."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from app_trainer_sdk.quantities import MIB
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.memory import CudaProbe

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
KEPT = {}


@pytest.fixture(autouse=True)
def empty():
    yield
    KEPT.clear()


def second_row(work):
    """The row of the second of two passes over ``work``: what libraries keep, the first one has left."""
    rows = []
    book = Ledger(CudaProbe(torch.device("cuda", 0)), rows.append, policy="report", warm=set())
    for _ in range(2):
        KEPT.clear()
        with book.phase("encode") as row:
            work(row)
    return rows[-1]


def encoder():
    return nn.Sequential(*[nn.Linear(2000, 2500, device="cuda") for _ in range(3)])


def test_three_modules_are_gone():
    """D1: three modules of 20 MB on the card leave nothing; what was handed over lies on the host."""

    def work(row):
        made = encoder()
        KEPT["mean"] = row.hand_over(made[0](torch.ones(8, 2000, device="cuda")).mean(0))

    row = second_row(work)

    assert row.verdict == "released"
    assert row.after.allocated - row.before.allocated <= MIB
    assert row.released >= 60_000_000
    assert row.peak >= row.before.allocated + 60_000_000
    assert KEPT["mean"].device.type == "cpu"


def test_one_module_in_a_global():
    """D1: a module on the card that a global keeps is told by its path, with all of its bytes."""

    def work(row):
        KEPT["encoder"] = encoder()

    row = second_row(work)
    (held,) = row.survivors

    assert f"{__name__}.KEPT['encoder'] (Sequential of 6 tensors" in row.verdict
    assert held.device_bytes == 3 * (2000 * 2500 + 2500) * 4
    assert row.unnamed < MIB


def test_losses_that_hold_their_graphs():
    """A list of losses is told, with what their graphs hold on the card in bytes."""
    model = nn.Sequential(*[nn.Linear(512, 512, device="cuda") for _ in range(4)])

    def work(row):
        KEPT["losses"] = [model(torch.randn(2048, 512, device="cuda")).pow(2).sum() for _ in range(5)]

    row = second_row(work)
    by_graphs = sum(held.bytes for held in row.survivors if held.owner.startswith("autograd")) + row.unnamed

    assert "KEPT['losses']" in row.verdict
    assert max(held.graphs for held in row.survivors) == 5
    assert by_graphs >= 5 * 4 * 2048 * 512 * 4
