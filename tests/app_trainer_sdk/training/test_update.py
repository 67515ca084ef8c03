"""One update: clipped, applied or not, whatever the scale and the numbers."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import PLAIN, Scalars, adapted_trainer, weight
from torch import nn
from torch_helpers import drive, make_trainer, open_training, train

from app_trainer_sdk.errors import BadData, Diverged, InternalError
from app_trainer_sdk.training import supervised, update

SCALED = {"mixed_precision": "fp16"}  # the loss scale of fp16 around fp32 arithmetic


def product(modules, values, random):
    """The one weight times each value."""
    return modules.root.w.sum() * sum(values)


class TestClipping:
    @pytest.mark.parametrize("settings", [{}, SCALED], ids=["fp32", "scale 65536"])
    def test_clipping_once_after_accumulation(self, tmp_path, settings):
        """A4: gradients (2,0) and (0,2) clipped to norm 1 move by (0.7071, 0.7071), also under a loss scale."""
        trainer = make_trainer(
            lambda run: Scalars(0.0, 0.0),
            lambda modules, values, random: sum(modules.root.w[value] * 2.0 for value in values),
            [0, 1],
            units=lambda value: 0.5,
        )
        training = open_training(
            trainer, tmp_path, updates=1, microbatch=1, global_batch=2, settings=settings,
            **{**PLAIN, "max_gradient_norm": 1.0},
        )  # fmt: skip
        drive(training)

        assert weight(training) == pytest.approx([-math.sqrt(0.5)] * 2, abs=1e-6)
        assert training.metrics()[0]["gradient_norm"] == pytest.approx(math.sqrt(8), abs=1e-6)
        if settings:
            assert training.snapshot().values["scaler"]["scale"] == 65536.0

    def test_a_gradient_within_the_limit_stays_as_it_is(self, tmp_path):
        """Two gradients of norm 3 under limits of 4 and 3 move as they are; under 1.5 half as far."""
        trainer = make_trainer(lambda run: Scalars(0.0), product, [3.0])
        moved = {
            limit: weight(
                train(trainer, tmp_path / str(limit), updates=2, **{**PLAIN, "max_gradient_norm": limit})
            )
            for limit in (4.0, 3.0, 1.5)
        }

        assert moved == {4.0: [-6.0], 3.0: [-6.0], 1.5: [pytest.approx(-3.0, abs=1e-5)]}


class TestSmallSets:
    def test_a_batch_larger_than_the_set(self, tmp_path):
        """I3: five rows under a batch of eight are refused with both numbers."""
        trainer = make_trainer(lambda run: Scalars(0.0), product, [1.0] * 5)

        with pytest.raises(BadData, match="has 5 rows and one update takes 8"):
            open_training(trainer, tmp_path, updates=1, global_batch=8, **PLAIN)

    def test_batch_norm_never_sees_a_single_row(self, tmp_path):
        """I3: nine rows, batch 4 and a batch norm finish the epoch with the last row merged."""
        trainer = norm_trainer(9)
        training = train(trainer, tmp_path, epochs=1, global_batch=4, **PLAIN)

        assert [line["examples"] for line in training.metrics()] == [4, 5]
        assert sorted(row for rows in trainer.trained for row in rows) == [*range(9)]
        assert min(map(len, trainer.trained)) == 2

    def test_batch_norm_must_say_its_minimum(self, tmp_path):
        """I3: a trainer with a batch norm that does not merge single rows is told how."""
        trainer = make_trainer(lambda run: nn.BatchNorm1d(1), lambda *_: None, [0.0] * 4)

        with pytest.raises(InternalError, match="minimum_rows = 2"):
            train(trainer, tmp_path, epochs=1, global_batch=4, **PLAIN)


def norm_trainer(rows, **attributes):
    def loss(modules, values, random):
        x = torch.tensor(values).reshape(-1, 1).repeat(1, 2)
        return (modules.root(x) - 1.0).pow(2).sum()

    return make_trainer(
        lambda run: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1)), loss,
        [math.sin(each) for each in range(rows)], minimum_rows=2, **attributes,
    )  # fmt: skip


class TestNonFinite:
    def test_a_nan_loss_is_recorded_and_blocks_its_update(self, tmp_path):
        """N1: losses 1.0, nan, 0.9: the second is marked and leaves the weights as they were."""
        made = iter([1.0, float("nan"), 0.9])
        seen = []

        def loss(modules, values, random):
            seen.append(modules.root.w.item())
            value = next(made)
            return modules.root.w.sum() * 0.1 - modules.root.w.item() * 0.1 + value

        trainer = make_trainer(lambda run: Scalars(0.5), loss, [0] * 8)
        training = train(trainer, tmp_path, updates=2, global_batch=1, **PLAIN)
        first, second, third = training.metrics()

        assert [first["loss"], second["loss"], third["loss"]] == pytest.approx([1.0, None, 0.9])
        assert (second["applied"], second["nonfinite"], second["step"]) == (False, ["loss"], 1)
        assert second["why"] == update.NON_FINITE
        assert "nonfinite" not in first
        assert seen[1] == seen[2] != seen[0]
        assert training.snapshot().values["counters"]["skipped"] == 1

    def test_divergence_stops_the_run_with_a_finite_checkpoint(self, tmp_path):
        """N1: linear regression at learning rate 1e6 stops within the limit and names the update."""

        def loss(modules, values, random):
            x = torch.tensor(values)
            return (modules.root.w * x - 2.0 * x).pow(2).sum()

        trainer = make_trainer(lambda run: Scalars(0.0), loss, [1.0, 2.0, 3.0, 4.0] * 8)
        training = open_training(
            trainer, tmp_path, updates=100, global_batch=4, nonfinite_limit=3,
            **{**PLAIN, "learning_rate": 1e6, "checkpoint_every": 1},
        )  # fmt: skip
        with pytest.raises(
            Diverged, match=r"3 updates in a row after update \d+ had a non-finite loss"
        ) as told:
            drive(training)

        assert int(told.value.code) == 82
        assert all(math.isfinite(value) for value in weight(training))
        assert len(training.metrics()) < 40
        assert [line["applied"] for line in training.metrics()[-3:]] == [False] * 3

    def test_weights_that_are_not_finite_are_never_saved(self, tmp_path):
        """N1: an update whose gradient is finite and whose weights are not saves nothing."""
        trainer = make_trainer(
            lambda run: Scalars(3e38),
            lambda modules, values, random: -3e28 * (modules.root.w - modules.root.w.detach()).sum(),
            [0] * 4,
        )
        training = open_training(
            trainer,
            tmp_path,
            updates=3,
            global_batch=1,
            **{**PLAIN, "learning_rate": 1e9, "checkpoint_every": 1},
        )
        with pytest.raises(Diverged, match="after update 2 the weight w is not finite"):
            drive(training)

        assert training.snapshot().values["counters"]["updates"] == 1

    def test_a_skipped_batch_leaves_no_trace_in_batch_norm(self, tmp_path):
        """N1: running statistics of a batch that was not applied are put back, so the run goes on."""

        def loss(modules, values, random):
            x = torch.tensor(values).reshape(-1, 1)
            return modules.root(x).sum()

        rows = [0.5, float("nan")] + [0.1 * each for each in range(30)]
        trainer = make_trainer(
            lambda run: nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1)), loss, rows, minimum_rows=2
        )
        training = train(trainer, tmp_path, epochs=1, global_batch=4, updates="auto", **PLAIN)

        assert training.snapshot().values["counters"]["skipped"] == 1
        assert all(torch.isfinite(each).all() for each in training.snapshot().section("model").values())

    @pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
    @pytest.mark.parametrize("fused", [True, False])
    def test_an_overflow_advances_nothing(self, tmp_path, optimizer, fused):
        """H1: inf gradients on attempts 1 and 2, finite on 3 to 5: three updates, three rates, two skipped."""
        attempts = iter([float("inf"), float("inf"), 1.0, 1.0, 1.0])
        seen = []

        def loss(modules, values, random):
            seen.append(modules.root.w.item())
            factor = next(attempts)
            return modules.root.w.sum() * factor if math.isfinite(factor) else (modules.root.w * 1e38).sum()

        trainer = make_trainer(lambda run: Scalars(1.0), loss, [0] * 8)
        asked = {**PLAIN, "optimizer": optimizer, "learning_rate": 0.1, "schedule": "linear"}
        training = open_training(trainer, tmp_path, updates=3, global_batch=1, settings=SCALED, **asked)
        state = supervised.begin(training.trainer, training.run, None)
        for group in state.optimizer.param_groups:
            group["fused"] = fused
        infos = list(supervised.training_steps(training.trainer, training.run, state))

        assert [info.applied for info in infos] == [False, False, True, True, True]
        assert [info.learning_rate for info in infos if info.applied] == pytest.approx([0.1, 0.2 / 3, 0.1 / 3])
        assert (state.counters.updates, state.counters.skipped, state.counters.nonfinite_in_a_row) == (3, 2, 0)
        assert seen[0] == seen[1] == seen[2] != seen[3]
        assert state.scaler.get_scale() == 65536.0 / 4


class TestGradientCheckpointing:
    def test_recomputation_changes_no_gradient(self, tmp_path):
        """F4: with dropout on, gradients with recomputation equal those without to 1e-6; all B have moved."""
        gradients = []
        for recompute in (False, True):
            training = open_training(
                adapted_trainer(), tmp_path / str(recompute), updates=1, global_batch=8, microbatch=4,
                gradient_checkpointing=recompute, **PLAIN,
            )  # fmt: skip
            state = supervised.begin(training.trainer, training.run, None)
            before = {name: each.detach().clone() for name, each in state.modules.root.named_parameters()}
            list(supervised.training_steps(training.trainer, training.run, state))
            moved = {name: before[name] - each for name, each in state.modules.root.named_parameters()}
            gradients.append(moved)  # SGD at rate 1

        assert gradients[0]["blocks.0.b"].abs().sum() > 0
        for name, plain in gradients[0].items():
            torch.testing.assert_close(gradients[1][name], plain, rtol=1e-6, atol=1e-6)
        assert all(gradients[1][f"blocks.{number}.b"].abs().sum() > 0 for number in (0, 1))

    # torch itself warns that no input of the reentrant form requires a gradient: the trap this test sets.
    @pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
    def test_untrained_adapters_are_named(self, tmp_path):
        """F4: the reentrant form over frozen inputs raises and names the parameters without a gradient."""
        training = open_training(adapted_trainer(reentrant=True), tmp_path, updates=1, global_batch=8, **PLAIN)
        with pytest.raises(
            InternalError, match=r"no gradient reached blocks\.0\.a, blocks\.0\.b, blocks\.1\.a"
        ):
            drive(training)

    @pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
    def test_a_loss_without_any_gradient(self, tmp_path):
        """F4: when nothing at all gets a gradient the sentence says so instead of torch's backward."""
        training = open_training(
            adapted_trainer(reentrant=True, head=False), tmp_path, updates=1, global_batch=8, **PLAIN
        )
        with pytest.raises(InternalError, match="does not depend on any trainable parameter"):
            drive(training)

    @pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
    def test_declared_exceptions_may_lack_a_gradient(self, tmp_path):
        """F4: a trainer may declare parameters that need no gradient in the first update."""
        trainer = adapted_trainer(reentrant=True, may_lack_gradient=("blocks.",))
        training = train(trainer, tmp_path, updates=2, global_batch=8, **PLAIN)

        assert len(training.applied()) == 2

    def test_blocks_must_be_named(self, tmp_path):
        """Recomputation without blocks is refused with what to return."""
        trainer = make_trainer(lambda run: Scalars(0.0), product, [1.0] * 4)

        with pytest.raises(InternalError, match="names no blocks to recompute"):
            train(trainer, tmp_path, updates=1, global_batch=1, gradient_checkpointing=True, **PLAIN)
