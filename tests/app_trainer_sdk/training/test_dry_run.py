"""A model is built without memory."""

from __future__ import annotations

import pytest
from torch import nn
from torch_helpers import make_trainer, run_of, squares

from app_trainer_sdk.training.predict import predict
from app_trainer_sdk.values import Modules


def test_nothing_of_the_model_is_in_memory(tmp_path):
    """A terabyte of parameters is planned as quickly as a kilobyte."""
    trainer = make_trainer(lambda run: nn.Linear(500_000, 500_000, bias=False), squares, [[0.0] * 500_000])()

    predicted = predict(trainer, run_of(trainer, tmp_path))

    assert predicted.phases["load"].by_owner["parameters"] == 10**12
    assert predicted.snapshot_bytes == pytest.approx(3 * 10**12)


def test_dropout_that_drops_nothing_takes_nothing_on_a_card(tmp_path):
    """At rate 0, and in evaluation."""

    def peaks(*layers):
        trainer = make_trainer(lambda run: nn.Sequential(nn.Linear(64, 64), *layers), squares, [[0.0] * 64])()
        return predict(trainer, run_of(trainer, tmp_path), kind="cuda").phases

    without, idle, dropped = peaks(), peaks(nn.Dropout(0.0)), peaks(nn.Dropout(0.5))

    assert idle == without
    assert dropped["evaluate"] == without["evaluate"]


@pytest.mark.parametrize("recomputed", [False, True])
def test_dropout_on_a_card_keeps_a_byte_for_each_element(tmp_path, recomputed):
    """On the CPU it keeps noise in the input's dtype, four times as much; recomputed blocks keep none."""

    def build(run):
        block = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5))
        return Modules(nn.Sequential(block), blocks=[block])

    trainer = make_trainer(build, squares, [[0.0] * 64])()
    run = run_of(trainer, tmp_path, gradient_checkpointing=recomputed)

    on_cpu, on_card = (predict(trainer, run, kind=kind) for kind in ("cpu", "cuda"))
    kept = [each.phases["forward"].by_owner["activations"] for each in (on_cpu, on_card)]

    assert kept[0] - kept[1] == (0 if recomputed else 2 * 64 * (4 - 1))
