"""Which ways are rehearsed, and which follow from others."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_helpers import CPU, make_trainer

from app_trainer_sdk.choice import Candidate
from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.handle import Run
from app_trainer_sdk.training import ways as module
from app_trainer_sdk.training.dry_run import Size, build_shapes
from app_trainer_sdk.training.ways import Ways

WIDTH = 128


def squares(modules, values, random):
    return modules.root(torch.tensor(values)).pow(2).sum()


@pytest.fixture
def make_ways(tmp_path):
    """Ways of two wide layers, and the ways that were rehearsed."""

    def make(loss=squares):
        trainer = make_trainer(
            lambda run: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)),
            loss, [[0.0] * WIDTH],
        )()  # fmt: skip

        def run_of(way):
            decided = {
                "updates": 4, "warmup_updates": 0, "torch_compile": False,
                "global_batch": way.microbatch * way.gradient_accumulation_steps, **way.knobs(),
            }  # fmt: skip
            return Run(
                settings=trainer.hyperparameters_class.read(decided), model=trainer.models[0], method="full",
                directory=tmp_path, cache=tmp_path, device=CPU, dtype=torch.bfloat16,
            )  # fmt: skip

        size = Size.of(build_shapes(trainer, run_of(Candidate(1, 1, False, False))))
        return Ways(trainer, size, run_of)

    return make


def test_a_way_is_rehearsed_once_and_composed_where_its_parts_are_known(make_ways, monkeypatch):
    """Three rehearsals tell the fourth, to the byte; asking again tells the same."""
    eight_bit = Candidate(4, 2, False, True)
    alone, ways, rehearsed = make_ways().predict(eight_bit), make_ways(), []
    true_predict = module.predict
    monkeypatch.setattr(
        module, "predict", lambda *given, **named: rehearsed.append(1) or true_predict(*given, **named)
    )
    known = [Candidate(1, 8, False, True), Candidate(1, 8, False, False), Candidate(4, 2, False, False)]
    for way in [*known, *known]:
        ways.predict(way)
    composed = ways.predict(eight_bit)

    assert len(rehearsed) == 3
    assert composed.phases == alone.phases


def test_only_what_lies_between_two_known_microbatches_is_estimated(make_ways):
    ways = make_ways()
    for rows in (1, 4):
        ways.predict(Candidate(rows, 8 // rows, False, False))

    assert ways.estimate(Candidate(2, 4, False, False)) is not None
    assert not ways.is_known(Candidate(2, 4, False, False))
    assert ways.estimate(Candidate(8, 1, False, False)) is None
    assert ways.estimate(Candidate(2, 4, True, False)) is None


def test_a_loss_that_needs_data_is_told_as_such(make_ways):
    def reads(modules, values, random):
        return squares(modules, values, random) * modules.root[0].weight.detach().numpy().sum()

    with pytest.raises(InternalError, match="cannot be rehearsed without data"):
        make_ways(reads).predict(Candidate(1, 1, False, False))
