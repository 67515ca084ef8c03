"""The moving average of the weights: what it holds, where it is used, and that it survives a resume."""

from __future__ import annotations

import pytest
import torch
from small_models import PLAIN, Scalars, adapted_trainer
from torch_helpers import make_trainer, same_tensors, train

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.training import ema
from app_trainer_sdk.training.allocations import Allocations
from app_trainer_sdk.training.checkpoint import load_checkpoint
from app_trainer_sdk.training.ema import WeightAverage, averaged, decay_at
from app_trainer_sdk.values import Snapshot

SLOPE = {**PLAIN, "global_batch": 1, "microbatch": 1}


def slope_trainer(rows, **attributes):
    """Each update at rate 1 takes a row's value from the weight; evaluation reports the weight."""
    return make_trainer(
        lambda run: Scalars(10.0), lambda modules, values, random: (modules.root.w * sum(values)).sum(), rows,
        **attributes,
    )  # fmt: skip


def test_the_decay_rises_to_the_one_asked_for():
    """(1 + n) / (10 + n), until the decay asked for is reached."""
    assert [decay_at(n, 0.5) for n in (1, 2, 8, 1000)] == [2 / 11, 3 / 12, 0.5, 0.5]


def test_it_follows_every_update_made(tmp_path):
    """The checkpoint holds the average of the weights as the recursion says."""
    training = train(slope_trainer([1.0] * 4), tmp_path, updates=4, ema_decay=0.9, **SLOPE)
    expected = 10.0
    for n, weight in enumerate((9.0, 8.0, 7.0, 6.0), start=1):
        expected += (weight - expected) * (1 - decay_at(n, 0.9))

    snapshot = training.snapshot()
    assert snapshot.tensors["model/w"].tolist() == [6.0]
    assert snapshot.tensors["ema/w"].tolist() == pytest.approx([expected], rel=1e-6)


def test_a_skipped_update_leaves_it_alone(tmp_path):
    """H1: a non-finite update moves neither the weights nor their average."""
    rows = [1.0, float("nan"), 1.0]
    skipping = train(slope_trainer(rows), tmp_path / "1", updates=2, ema_decay=0.9, **SLOPE)
    plain = train(slope_trainer([1.0, 1.0]), tmp_path / "2", updates=2, ema_decay=0.9, **SLOPE)

    assert same_tensors(skipping.snapshot().section("ema"), plain.snapshot().section("ema"))


def test_evaluation_sees_the_average_and_moves_no_number(tmp_path):
    """The loss reported is the average's; training goes on with its own weights, bit for bit."""
    trainings = [
        train(
            slope_trainer([1.0] * 4, validation=[1.0]), tmp_path / str(every), updates=4, ema_decay=0.9,
            **{**SLOPE, "evaluate_every": every},
        )
        for every in (0, 1)
    ]  # fmt: skip
    seldom, often = (each.snapshot() for each in trainings)

    assert same_tensors(seldom.tensors, often.tensors)
    assert trainings[1].evaluations()[-1]["loss"] == pytest.approx(often.tensors["ema/w"].item())


def test_a_stop_inside_an_evaluation_saves_the_weights_of_training(tmp_path):
    """Whichever check the stop falls on, the run that goes on ends as one that was never stopped."""

    def go(directory, **options):
        return train(
            slope_trainer([1.0, 2.0, 3.0, 4.0], validation=[1.0, 2.0]), directory, updates=3, ema_decay=0.5,
            **{**SLOPE, "evaluate_every": 1}, **options,
        )  # fmt: skip

    whole = go(tmp_path / "whole")
    for check in range(1, whole.token.checks + 1):
        directory = tmp_path / str(check)
        assert go(directory, stop_at=check).stopped
        again = go(directory)

        assert same_tensors(again.snapshot().tensors, whole.snapshot().tensors)
        assert again.evaluations() == whole.evaluations()


def test_dropout_accumulation_and_a_kill_in_between(tmp_path):
    """Stopped after every checkpoint and gone on, the average is bit-identical."""
    options = {
        **PLAIN,
        "updates": 6,
        "global_batch": 4,
        "microbatch": 2,
        "ema_decay": 0.99,
        "checkpoint_every": 1,
    }
    whole = train(adapted_trainer(), tmp_path / "whole", **options)
    for stop_at in (3, 9, 15):
        train(adapted_trainer(), tmp_path / "cut", stop_at=stop_at, **options)
    cut = train(adapted_trainer(), tmp_path / "cut", **options)

    assert same_tensors(cut.snapshot().tensors, whole.snapshot().tensors)
    assert cut.metrics() == whole.metrics()


def test_bf16_weights_are_averaged_in_fp32():
    """A weight that moves by less than bf16's last bit still moves its average."""
    weight = torch.tensor([1.0], dtype=torch.bfloat16)
    average = WeightAverage({"w": weight}, 0.999)
    weight.fill_(1.0078125)
    for n in range(10_000, 10_003):
        average.follow(n)

    assert average.tensors["w"].dtype == torch.float32
    assert 1.0 < average.tensors["w"].item() < 1.0001
    with average.in_place():
        assert weight.item() == 1.0
    assert weight.item() == 1.0078125


def test_an_average_of_other_parameters_is_refused():
    """The message names the parameter and where it is missing."""
    average = WeightAverage({"a": torch.zeros(1), "b": torch.zeros(1)}, 0.9)
    with pytest.raises(InternalError, match="b is missing in the checkpoint's average"):
        average.restore({"a": torch.zeros(1)})


def test_export_gets_the_average_in_the_models_place():
    """Dtypes are the model's; without an average the snapshot stays what it was."""
    live = Snapshot({"model/w": torch.zeros(2, dtype=torch.bfloat16), "model/steps": torch.ones(1)})
    kept = Snapshot({**live.tensors, "ema/w": torch.ones(2)})

    assert averaged(live) is live
    assert averaged(kept).section("model")["w"].tolist() == [1.0, 1.0]
    assert averaged(kept).section("model")["w"].dtype == torch.bfloat16
    assert averaged(kept).section("model")["steps"].tolist() == [1.0]


def test_it_is_read_without_the_sdk(tmp_path):
    """The average lies in ``ema.safetensors``, by the model's names."""
    from safetensors.torch import load_file

    training = train(slope_trainer([1.0] * 2), tmp_path, updates=2, ema_decay=0.9, **SLOPE)
    checkpoint, _ = training.store.newest()

    assert same_tensors(
        load_file(checkpoint.path / "ema.safetensors"), load_checkpoint(checkpoint).section("ema")
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_following_takes_no_memory_and_moves_as_the_formula_says(dtype, monkeypatch):
    """D4: weights have moved by then, so that memory must not run out: narrow ones are widened in pieces."""
    monkeypatch.setattr(ema, "WIDENED_AT_ONCE", 10)
    shapes = [(), (3,), (7, 4), (4, 2), (1, 25), (5,)]
    weights = {str(at): torch.randn(shape).to(dtype) for at, shape in enumerate(shapes)}
    average = WeightAverage(weights, 0.9)
    expected = {name: each.clone() for name, each in average.tensors.items()}
    for update in (1, 2):
        for name, each in weights.items():
            each.add_(1.0)
            expected[name].lerp_(each.to(expected[name].dtype), 1 - decay_at(update, 0.9))
        account = Allocations()
        with account:
            account.mark("follow")
            account.give([*average.memory, *weights.values()], "average")
            average.follow(update)
        (peak,) = account.peaks().values()

        assert peak.total == peak.by_owner["average"]
        assert all(torch.equal(each, expected[name]) for name, each in average.tensors.items())
    assert all(each.dtype == torch.promote_types(dtype, torch.float32) for each in average.tensors.values())
