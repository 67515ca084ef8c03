"""Evaluation weighs by units and leaves no trace."""

from __future__ import annotations

import pytest
import torch
from small_models import PLAIN, Adapted, Scalars, adapted_trainer
from torch_helpers import make_trainer, open_training, same_tensors, train

from app_trainer_sdk.training import supervised
from app_trainer_sdk.training.memory import CpuProbe
from app_trainer_sdk.values import LossTerms


class TestEvaluation:
    def test_evaluating_more_often_moves_no_number(self, tmp_path):
        """N3: weights, losses and ids are equal whether validation is looked at never or after every update."""
        trainings = [
            train(
                adapted_trainer(validation=[1, 2, 3]), tmp_path / str(every), updates=6, global_batch=4,
                microbatch=2, **{**PLAIN, "evaluate_every": every},
            )
            for every in (0, 1)
        ]  # fmt: skip

        assert same_tensors(trainings[0].snapshot().section("model"), trainings[1].snapshot().section("model"))
        assert trainings[0].metrics() == trainings[1].metrics()
        assert [len(each.evaluations()) for each in trainings] == [1, 7]
        assert trainings[0].evaluations()[-1] == trainings[1].evaluations()[-1]

    def test_modes_and_gradients_are_as_before(self, tmp_path):
        """N3: a module put into evaluation mode by its trainer is still in it, and no gradient appears."""

        def build(run):
            root = Adapted()
            root.blocks[0].dropout.eval()
            return root

        trainer = make_trainer(
            build, lambda modules, values, random: modules.root(torch.tensor(values)).sum(), [0] * 8,
            validation=[1, 2, 3],
        )  # fmt: skip
        training = open_training(trainer, tmp_path, updates=1, global_batch=4, **PLAIN)
        state = supervised.begin(training.trainer, training.run, None)
        state.modules.root.blocks[0].dropout.eval()
        modes = {name: module.training for name, module in state.modules.root.named_modules()}
        terms = list(training.trainer.evaluate(training.run, state, "validation"))

        assert {name: module.training for name, module in state.modules.root.named_modules()} == modes
        assert all(each.grad is None for each in state.parameters)
        assert not any(each.sum.requires_grad for each in terms)

    def test_no_logits_are_kept(self, tmp_path):
        """E1: 50 batches with logits of 20 MB each take the memory of one; metrics are those of all rows."""
        rows = list(range(8 * 49 + 3))

        def loss(modules, values, random):
            scores = torch.arange(128.0 * 5000).mul_(1e-6).reshape(1, 128, 5000)
            logits = scores.expand(len(values), -1, -1) + modules.root.w * torch.tensor(values)[:, None, None]
            right = sum(float(each.amax()) > 100 for each in logits)
            return LossTerms(logits.sum() / 640_000, metrics={"right": (right, len(values))})

        trainer = make_trainer(lambda run: Scalars(1.0), loss, rows, validation=rows)
        training = open_training(trainer, tmp_path, updates=1, microbatch=8, global_batch=8, **PLAIN)
        state = supervised.begin(training.trainer, training.run, None)
        next(training.trainer.evaluate(training.run, state, "validation"))  # what libraries keep is there now
        probe = CpuProbe()
        probe.release()
        probe.reset()
        before = probe.read().resident
        sums = {"loss": 0.0, "right": 0.0}
        for terms in training.trainer.evaluate(training.run, state, "validation"):
            for name in sums:
                sums[name] += float(terms.metrics[name][0])

        assert probe.peak_of == "" or probe.peak() - before < 60_000_000
        assert sums["loss"] / len(rows) == pytest.approx(sum(rows) / len(rows) + 0.3199995, rel=1e-6)
        assert sums["right"] == sum(each + 0.64 > 100 for each in rows)

    def test_the_loss_weighs_by_units(self, tmp_path):
        """E1: the mean over a short last batch equals that over everything at once to 1e-6."""
        rows = [float(each) for each in range(11)]
        losses = []
        for microbatch in (1, 4, 11):
            trainer = make_trainer(
                lambda run: Scalars(1.0),
                lambda modules, values, random: (modules.root.w * torch.tensor(values)).sum(), rows,
                units=lambda value: 1.0 + value, validation=rows,
            )  # fmt: skip
            training = train(
                trainer, tmp_path / str(microbatch), updates=1, global_batch=microbatch, microbatch=microbatch,
                **{**PLAIN, "learning_rate": 1e-30},
            )  # fmt: skip
            losses.append(training.evaluations()[-1]["loss"])

        assert losses == pytest.approx([sum(rows) / (len(rows) + sum(rows))] * 3, rel=1e-6)
