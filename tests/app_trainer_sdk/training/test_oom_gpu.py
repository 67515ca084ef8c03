"""The twin of ``test_oom.py`` and ``test_whole_step.py`` on a card with a cap: memory runs out for real."""

from __future__ import annotations

import contextlib
import dataclasses
import gc

import pytest
import torch
from small_models import PLAIN
from torch import nn
from torch_helpers import drive, make_trainer, open_training

from app_trainer_sdk.errors import GpuOutOfMemory
from app_trainer_sdk.training import optim
from app_trainer_sdk.training.supervised import begin

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
MIB = 1 << 20
WIDTH = 4096
LAYER = WIDTH * WIDTH * 4  # 64 MiB, as its gradient
ROW = 32 * MIB  # what a row's activation takes
#: Room for a layer, its gradient and two rows; for four rows where there is no gradient yet.
TIGHT = 2 * LAYER + 5 * ROW // 2
SETTINGS = {**PLAIN, "learning_rate": 1e-6, "global_batch": 8, "microbatch": 8, "updates": 2}
ADAMW = {"optimizer": "adamw", "beta1": 0.9}


@pytest.fixture(autouse=True)
def workspaces():
    """What cuBLAS takes once for each thread is there before memory is capped."""
    layer = nn.Linear(8, 8, device="cuda")
    layer(torch.ones(8, 8, device="cuda", requires_grad=True)).sum().backward()


@contextlib.contextmanager
def capped(more):
    """Inside, torch may hold so many bytes more on the card than it does now."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(0) + more) / total, 0)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, 0)


def layer_trainer(*, training=0, measuring=0):
    """One layer, and activations of so many bytes a row; ``tried`` tells the rows of each try."""

    def loss(modules, values, random):
        x = torch.tensor(values, device="cuda")[:, None]
        size = training if torch.is_grad_enabled() else measuring
        tried.append((torch.is_grad_enabled(), len(values)))
        padding = x.expand(-1, size // 4).clone().sum(1) * 0.0 if size else 0.0
        return (modules.root(x.expand(-1, WIDTH)).square().sum(1) + padding).sum()

    tried = []
    rows = [0.125 * number for number in range(16)]
    made = make_trainer(lambda run: nn.Linear(WIDTH, WIDTH), loss, rows, validation=rows)
    made.tried = tried
    return made


def on_card(trainer, directory, **options):
    training = open_training(trainer, directory, **{**SETTINGS, **options})
    training.run = dataclasses.replace(training.run, device=torch.device("cuda", 0))
    return training


def driven(trainer, directory, **options):
    training = on_card(trainer, directory, **options)
    drive(training)
    return training


def test_an_update_is_made_with_less(tmp_path):
    """D4: rows that do not fit are halved until they do; losses are those of a run that never was short."""
    plain = driven(layer_trainer(training=ROW), tmp_path / "plain")
    trainer = layer_trainer(training=ROW)
    with capped(TIGHT):
        short = driven(trainer, tmp_path / "short")
    (first, second) = short.metrics()

    assert [each["next"] for each in first["out_of_memory"]] == [4, 2]
    assert "out_of_memory" not in second
    for ours, theirs in zip(short.metrics(), plain.metrics(), strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        assert ours["ids"] == theirs["ids"]


def test_an_evaluation_is_made_with_less(tmp_path):
    """E1: batches that do not fit are measured in parts; the loss is that of whole ones."""
    plain = driven(layer_trainer(measuring=ROW), tmp_path / "plain")
    with capped(TIGHT):
        short = driven(layer_trainer(measuring=ROW), tmp_path / "short")

    assert "out_of_memory" in short.evaluations()[-1]
    assert short.evaluations()[-1]["loss"] == pytest.approx(plain.evaluations()[-1]["loss"], rel=1e-5)


def test_state_that_does_not_fit_ends_at_once(tmp_path):
    """E3: weights and gradients fit and AdamW's moments do not: 79 after one try, and the reason."""
    trainer = layer_trainer()
    with capped(3 * LAYER), pytest.raises(GpuOutOfMemory, match="would not help") as caught:
        driven(trainer, tmp_path, **ADAMW)

    assert caught.value.code == 79
    assert [rows for _, rows in trainer.tried] == [8]


@pytest.mark.parametrize(
    "options",
    [ADAMW, {**ADAMW, "optim_8bit": True}, {"optimizer": "sgd", "beta1": 0.9, "weight_decay": 0.01}],
    ids=["adamw", "8-bit", "momentum"],
)
def test_later_steps_take_no_memory(tmp_path, options):
    """E3: the second step allocates nothing of a weight's size, so that only the first one is copied for."""
    training = on_card(layer_trainer(), tmp_path, **options)
    state = begin(training.trainer, training.run, None)
    grown = []
    for _ in range(2):
        for each in state.parameters:
            each.grad = torch.ones_like(each)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, takes = torch.cuda.memory_allocated(), optim.takes_memory(state.optimizer)
        optim.step(state.optimizer)
        torch.cuda.synchronize()
        grown.append((takes, torch.cuda.max_memory_allocated() - before >= MIB))

    assert grown == [(True, True), (False, False)]
