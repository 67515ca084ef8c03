"""Evaluation weighs by units and leaves no trace."""

from __future__ import annotations

import pytest
import torch
from small_models import PLAIN, Adapted, Scalars, adapted_trainer
from torch_helpers import make_trainer, open_training, same_tensors, train

from app_trainer_sdk.errors import GpuOutOfMemory
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

        # All would be 1,000 MB; a few may wait for malloc to hand them back.
        assert probe.peak_of == "" or probe.peak() - before < 200_000_000
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


def short_evaluation(most, tried, **attributes):
    """A trainer whose evaluation fits only up to ``most`` rows; halves and eighths add up exactly."""

    def loss(modules, values, random):
        if not torch.is_grad_enabled():
            tried.append(len(values))
            if len(values) > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        noise = [random.row(at).python.random() for at in range(len(values))]
        x = torch.tensor(values) + torch.tensor([float(each > 0.5) for each in noise])
        return LossTerms((modules.root.w * x).sum(), metrics={"large": (float((x > 1).sum()), len(values))})

    rows = [number / 8 for number in range(21)]
    return make_trainer(lambda run: Scalars(1.5), loss, rows, validation=rows, **attributes)


SHORT = {**PLAIN, "learning_rate": 0.0625, "microbatch": 8, "global_batch": 8, "updates": 2}


class TestShortEvaluation:
    def test_the_sums_are_those_of_whole_batches(self, tmp_path):
        """E1: batches of 8 rows are measured in 2s; lines are equal but for what was tried, which is told."""
        tried = []
        options = {**SHORT, "evaluate_every": 1}
        plain = train(short_evaluation(99, []), tmp_path / "plain", **options)
        short = train(short_evaluation(2, tried), tmp_path / "short", **options)
        lines = short.evaluations()
        variants = lines[0].pop("out_of_memory")

        assert lines == plain.evaluations()
        assert short.metrics() == plain.metrics()
        assert tried[:6] == [8, 4, 2, 2, 2, 2]
        assert max(tried[6:]) == 2  # the size that fits is kept
        assert [(each["split"], each["microbatch"], each["next"]) for each in variants] == [
            ("validation", 8, 4), ("validation", 4, 2),
        ]  # fmt: skip
        assert variants[0]["inputs"]["rows"] == 8
        assert variants[0]["error"].startswith("OutOfMemoryError: CUDA out of memory.")
        said = [facts for kind, facts in short.channel.said if kind == "recovered"]
        assert [(each["step"], each["split"], each["next"]) for each in said] == [
            (0, "validation", 4), (0, "validation", 2),
        ]  # fmt: skip

    def test_one_row_is_the_least(self, tmp_path):
        """E1: an evaluation that fits with no row ends with 79 and says which split, at how many rows."""
        tried = []
        message = "no memory for the evaluation of validation in phase train with 1 rows at once, and one row"
        with pytest.raises(GpuOutOfMemory, match=message):
            train(short_evaluation(0, tried), tmp_path, **SHORT)

        assert tried == [8, 4, 2, 1]

    def test_rows_that_see_each_other(self, tmp_path):
        """A measure of rows that see each other is not that of a part of them: it is never split."""
        tried = []
        with pytest.raises(GpuOutOfMemory, match="rows of this trainer's batch see each other"):
            train(short_evaluation(2, tried, coupled_rows=True), tmp_path, **SHORT)

        assert tried == [8]
