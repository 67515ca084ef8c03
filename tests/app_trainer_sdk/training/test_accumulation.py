"""The gradient of one window: the same whatever the split, and of what trains alone."""

from __future__ import annotations

import pytest
import torch
from small_models import PLAIN, Scalars, weight
from torch_helpers import make_trainer, train

from app_trainer_sdk.errors import BadData, InternalError
from app_trainer_sdk.training import update
from app_trainer_sdk.values import LossTerms


def token_loss(modules, values, random):
    """Token loss w * x over the tokens that are trained on; a value is a list of (x, trained)."""
    tokens = [x for value in values for x, trained in value if trained]
    return (modules.root.w * torch.tensor(tokens)).sum()


A = [(1.0, True)] * 3 + [(100.0, False)] * 2
B = [(0.0, True)] * 7


class TestAccumulation:
    @pytest.mark.parametrize(
        ("rows", "microbatch"),
        [
            ([A, B], 1),
            ([A + B[:2], B[2:]], 1),
            ([A[:1], A[1:] + B], 1),
            ([A + B], 1),
            ([A, B], 2),
        ],
        ids=["3+7", "5+5", "1+9", "10", "two rows at once"],
    )
    def test_tokens_weigh_the_same_in_any_split(self, tmp_path, rows, microbatch):
        """A1: the gradient of ten tokens is 0.3 however they are split into microbatches."""
        trainer = make_trainer(
            lambda run: Scalars(0.0), token_loss, rows, units=lambda value: sum(trained for _, trained in value)
        )
        training = train(trainer, tmp_path, updates=1, global_batch=len(rows), microbatch=microbatch, **PLAIN)

        assert weight(training) == pytest.approx([-0.3], abs=1e-6)
        assert training.metrics()[0]["gradient_norm"] == pytest.approx(0.3, abs=1e-6)
        assert training.metrics()[0]["units"] == 10.0

    def test_noise_of_a_row_is_the_same_in_any_split(self, tmp_path):
        """What a loss and an evaluation draw from ``random.row`` does not know of microbatches."""

        def loss(modules, values, random):
            noise = [torch.randn((), generator=random.row(row).torch()) for row in range(len(values))]
            return (modules.root.w * torch.stack(noise)).sum()

        told = []
        for microbatch in (1, 2, 3, 6):
            trainer = make_trainer(lambda run: Scalars(1.0), loss, [0] * 9, validation=[0] * 7)
            settings = {**PLAIN, "learning_rate": 0.1, "evaluate_every": 1}
            training = train(
                trainer,
                tmp_path / str(microbatch),
                updates=3,
                global_batch=6,
                microbatch=microbatch,
                **settings,
            )
            evaluations = [each["loss"] for each in training.evaluations()]
            told.append([*weight(training), *evaluations, *(each["loss"] for each in training.metrics())])

        assert len(set(told[0])) == len(told[0])
        for other in told[1:]:
            assert other == pytest.approx(told[0], rel=1e-5)

    def test_a_window_without_units_makes_no_update(self, tmp_path):
        """A1: a window whose tokens are all masked is counted, changes nothing and shows no loss."""
        masked = [(5.0, False)]
        rows = [masked, masked, masked, A]
        trainer = make_trainer(
            lambda run: Scalars(0.0), token_loss, rows, units=lambda value: sum(trained for _, trained in value)
        )
        training = train(trainer, tmp_path, updates=2, global_batch=1, **PLAIN)
        skipped = [line for line in training.metrics() if not line["applied"]]

        assert weight(training) == [-2.0]
        assert training.snapshot().values["counters"]["without_units"] == len(skipped) > 0
        assert {line["loss"] for line in skipped} == {None}
        assert {line["why"] for line in skipped} == {update.NO_UNIT}

    def test_the_tail_of_an_epoch_is_a_whole_update(self, tmp_path):
        """A3: five microbatches of gradient 1 with accumulation 4 make two updates and w = -2."""
        trainer = make_trainer(
            lambda run: Scalars(0.0), lambda modules, values, random: modules.root.w.sum(), [0] * 5
        )
        training = train(trainer, tmp_path, epochs=1, microbatch=1, gradient_accumulation_steps=4, **PLAIN)

        assert weight(training) == [-2.0]
        assert [line["step"] for line in training.metrics()] == [1, 2]
        assert [line["examples"] for line in training.metrics()] == [4, 1]

    def test_the_tail_after_a_resume(self, tmp_path):
        """A3: resumed between the two updates, w is still -2."""
        trainer = make_trainer(
            lambda run: Scalars(0.0), lambda modules, values, random: modules.root.w.sum(), [0] * 5
        )
        asked = {"epochs": 1, "microbatch": 1, "gradient_accumulation_steps": 4, **PLAIN}
        first = train(trainer, tmp_path, stop_at=5, **asked)
        between = weight(first)
        second = train(trainer, tmp_path, **asked)

        assert (first.stopped, between) == (True, [-1.0])
        assert weight(second) == [-2.0]

    def test_a_loss_for_each_row_is_refused(self, tmp_path):
        """Backward from a vector would train its sum, whatever the author meant."""
        trainer = make_trainer(
            lambda run: Scalars(0.0), lambda modules, values, random: modules.root.w * torch.ones(2), [0, 1]
        )

        with pytest.raises(InternalError, match=r"a term of the loss has the shape \(2,\).*expected a scalar"):
            train(trainer, tmp_path, updates=1, global_batch=2, **PLAIN)

    @pytest.mark.parametrize(
        ("terms", "told"),
        [
            (
                lambda loss: float(loss.detach()),
                "a term of the loss has the value 1.0; expected a scalar tensor",
            ),
            (lambda loss: LossTerms(loss, means={"balance": 1.0}), "a term of the loss has the value 1.0"),
            (lambda loss: LossTerms(loss, metrics={"right": 1.0}), "the metric right is 1.0; expected a pair"),
        ],
    )
    def test_a_number_where_something_else_belongs(self, tmp_path, terms, told):
        """A loss read on the host, or a metric without its count, is told by what was found."""
        trainer = make_trainer(
            lambda run: Scalars(1.0), lambda modules, values, random: terms(modules.root.w.sum()), [0]
        )

        with pytest.raises(InternalError, match=told):
            train(trainer, tmp_path, updates=1, global_batch=1, **PLAIN)

    def test_another_kind_of_answer_is_told_by_the_method(self, tmp_path):
        """A batch that is a dict, as other libraries have it, names ``collate`` and what it should return."""
        trainer = make_trainer(
            lambda run: Scalars(1.0), token_loss, [0], collate=lambda self, run, items: {"x": items}
        )

        with pytest.raises(InternalError, match="collate returned dict; expected Batch; change collate"):
            train(trainer, tmp_path, updates=1, global_batch=1, **PLAIN)

    def test_means_are_averaged_over_microbatches(self, tmp_path):
        """A term that is a mean already counts once, however many microbatches there are."""
        trainer = make_trainer(
            lambda run: Scalars(0.0),
            lambda modules, values, random: LossTerms(
                modules.root.w.sum() * 0.0, means={"balance": 3.0 * modules.root.w.sum()}
            ),
            [0] * 4,
        )
        for microbatch in (1, 2, 4):
            training = train(
                trainer, tmp_path / str(microbatch), updates=1, global_batch=4, microbatch=microbatch, **PLAIN
            )

            assert weight(training) == pytest.approx([-3.0])


class TestMaskedRows:
    @pytest.mark.parametrize("empty", ["constant", "nan"])
    def test_an_empty_microbatch_adds_nothing(self, tmp_path, empty):
        """I2: one masked row among eight good ones, accumulation 3: the good tokens' gradient, counted once."""

        def loss(modules, values, random):
            good = torch.tensor([value for value in values if value])
            if not len(good):
                nothing = torch.zeros(())
                return nothing if empty == "constant" else (modules.root.w * good).sum() / 0.0
            return (modules.root.w * good).sum()

        rows = [0.0, *[float(value) for value in range(1, 9)]]
        trainer = make_trainer(lambda run: Scalars(0.0), loss, rows, units=lambda value: float(value != 0.0))
        single = train(
            trainer, tmp_path / "single", updates=1, microbatch=1, gradient_accumulation_steps=9, **PLAIN
        )
        thirds = train(
            trainer, tmp_path / "thirds", updates=1, microbatch=3, gradient_accumulation_steps=3, **PLAIN
        )

        assert weight(single) == pytest.approx([-4.5], abs=1e-6)
        assert weight(thirds) == pytest.approx([-4.5], abs=1e-6)
        assert single.snapshot().values["counters"]["empty_microbatches"] == 1
        assert thirds.snapshot().values["counters"]["empty_microbatches"] == 0
        assert single.metrics()[0]["units"] == 8.0

    def test_rows_that_all_train_nothing_end_the_run(self, tmp_path):
        """I2: a whole pass without a unit is bad data, not a loss of zero."""
        trainer = make_trainer(
            lambda run: Scalars(0.0), token_loss, [[(1.0, False)]] * 6, units=lambda value: 0.0
        )

        with pytest.raises(BadData, match="all 6 rows were read and none has a unit"):
            train(trainer, tmp_path, updates=4, global_batch=2, **PLAIN)
