"""What a run that ran out of memory is told to change: checked by the planner, or said not to be."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn
from torch_helpers import CPU, make_trainer, squares

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.gpus import Card
from app_trainer_sdk.handle import Run
from app_trainer_sdk.planning.process import ask as ask_process
from app_trainer_sdk.training.nearest import SECONDS, hint
from app_trainer_sdk.training.planning import answer
from app_trainer_sdk.values import Modules

MIB = 1 << 20
WIDTH = 256


def blocks(run):
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Tanh(), nn.Tanh()) for _ in range(6)]
    return Modules(nn.Sequential(*layers), blocks=layers)


@pytest.fixture
def failed(tmp_path):
    """A trainer, its run and its state as they were when memory ran out."""
    module = types.ModuleType("nearest_trainer")
    sys.modules[module.__name__] = module
    made = make_trainer(blocks, squares, [[0.0] * WIDTH])
    made.__module__, made.__qualname__, module.Toy = module.__name__, "Toy", made

    def make(halved_to=4096):
        decided = {
            "updates": 4, "epochs": "auto", "warmup_updates": 0, "global_batch": 4096, "microbatch": 4096,
            "gradient_accumulation_steps": 1, "gradient_checkpointing": False, "optim_8bit": False,
            "mixed_precision": "no", "torch_compile": False, "dataloader_workers": 0,
        }  # fmt: skip
        read = made.hyperparameters_class.read(decided)
        now = read.model_copy(update={"microbatch": halved_to})
        run = Run(
            settings=read, model=made.models[0], method="full", directory=tmp_path, cache=tmp_path, device=CPU,
            dtype=torch.float32,
        )  # fmt: skip
        return made(), run, types.SimpleNamespace(settings=now, team=types.SimpleNamespace(size=1))

    yield make
    del sys.modules[module.__name__]


def card_of(memory_bytes):
    return Card("small", "A small card", memory_bytes, "9.0", True, 0, 0)


def in_this_process(request, *, seconds):
    assert seconds == SECONDS
    return answer(request)


def test_the_settings_named_are_those_that_the_planner_finds_to_fit(failed):
    """The microbatch as it was takes more; what would do is told with the bytes that a plan gives it."""
    asked = []

    def listen(request, *, seconds):
        asked.append((request, in_this_process(request, seconds=seconds)))
        return asked[0][1]

    told = hint(*failed(), "less", ask=listen, card=card_of(280 * MIB))
    ((request, found),) = asked
    settings = {**request["job"]["hyperparameters"], **found["settings"]}
    again = {**request, "nearest": False, "job": {**request["job"], "hyperparameters": settings}}
    (plan,) = answer(again)["cards"]

    assert told.startswith("/hyperparameters/microbatch to ")
    assert "(predicted 0.2" in told
    assert "of 0.27 GiB), or take a T4" in told
    assert plan["fits"]
    assert plan["memory"]["needed_bytes"] == found["needed_bytes"] <= 280 * MIB


def test_what_ran_out_of_memory_is_never_advised(failed):
    """On a card on which the planner thought it would fit, only what takes less than that is named."""
    told = hint(*failed(), "less", ask=in_this_process, card=card_of(1 << 40))

    assert told.startswith("/hyperparameters/")
    assert "or take a larger card than is known" in told


def test_a_card_on_which_nothing_fits_is_told_as_such(failed):
    told = hint(*failed(halved_to=3), "less", ask=in_this_process, card=card_of(1 * MIB))

    assert told.startswith("take a T4: no setting that takes less fits, the leanest is predicted 0.2")


def test_what_could_not_be_checked_says_so(failed):
    """A planner that fails or takes too long, and a machine without a card."""

    def late(request, *, seconds):
        raise InternalError("planning took longer than 60 s")

    assert (
        hint(*failed(), "less", ask=late, card=card_of(1))
        == "less (not checked: planning took longer than 60 s)"
    )
    assert hint(*failed(), "less") == "less (not checked: the planner knows the memory of cards alone)"


def test_the_planning_process_is_given_up_when_it_takes_too_long(monkeypatch):
    monkeypatch.setattr(
        "app_trainer_sdk.planning.process.PROGRAM", (sys.executable, "-c", "import time; time.sleep(60)")
    )

    with pytest.raises(InternalError, match=r"longer than 0 s"):
        ask_process({}, seconds=0.2)
