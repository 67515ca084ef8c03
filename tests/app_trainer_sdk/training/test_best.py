"""The best evaluation, patience, and that both survive a stop."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch_helpers import make_trainer, read_lines, train

from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.training.best import Best
from app_trainer_sdk.training.drive import is_trained, pick_for_export


def best(**asked):
    return Best(**{"metric": "loss", "lowest": True, "patience": 0, "wanted": False, **asked})


def test_lower_is_better_unless_asked_otherwise():
    """An equal value is no better one; the first is."""
    low, high = best(), best(lowest=False)

    assert [low.take(step, {"loss": value}) for step, value in enumerate((3.0, 3.0, 2.0, 4.0))] == [
        True, False, True, False
    ]  # fmt: skip
    assert [high.take(step, {"loss": value}) for step, value in enumerate((3.0, 2.0, 4.0))] == [
        True,
        False,
        True,
    ]
    assert (low.step, low.value, low.without_better) == (2, 2.0, 1)


def test_a_value_that_is_not_finite_is_never_the_best():
    """Evaluations write null for it."""
    tracker = best()

    assert not tracker.take(1, {"loss": None})
    assert tracker.step is None


def test_patience_counts_evaluations_in_a_row():
    """A better value starts the count anew; 0 never runs out."""
    tracker, endless = best(patience=2), best()
    for step, value in enumerate((3.0, 4.0, 2.0, 2.5)):
        tracker.take(step, {"loss": value})
        endless.take(step, {"loss": value})

    assert not tracker.exhausted
    tracker.take(5, {"loss": 2.5})
    assert tracker.exhausted
    assert not endless.exhausted


def test_an_unknown_metric_is_refused_only_where_it_is_needed():
    """With patience or export_from best, the names there are stand in the message."""
    assert not best(metric="accuracy").take(1, {"loss": 1.0})
    with pytest.raises(BadJob, match=r"no 'accuracy'.*one of loss.*best_metric"):
        best(metric="accuracy", wanted=True).take(1, {"loss": 1.0})


def test_its_state_is_taken_up_again():
    """A checkpoint's document brings back step, value and count."""
    tracker, again = best(), best()
    for step, value in enumerate((3.0, 4.0)):
        tracker.take(step, {"loss": value})
    again.take_up(tracker.document())

    assert again == tracker


#: A rate so high that the loss falls at first and rises afterwards.
RISING = {
    "updates": 12, "global_batch": 2, "evaluate_every": 1, "checkpoint_every": 100, "warmup_updates": 0,
    "optimizer": "sgd", "beta1": 0.0, "learning_rate": 1.2, "schedule": "constant", "max_gradient_norm": 0.0,
    "seed": 3,
}  # fmt: skip


def overshooting(**options):
    """Training rows pull one way and validation rows the other: validation gets worse as training goes on."""

    def loss(modules, values, draw):
        return (modules.root(torch.tensor(values).unsqueeze(-1)) - 1.0).pow(2).sum()

    rows = [0.1 * row for row in range(12)]
    return make_trainer(lambda run: nn.Linear(1, 1), loss, rows, validation=[-5.0, -6.0], **options)


def test_training_ends_when_patience_has_run_out_and_says_why(tmp_path):
    """The last checkpoint is finished, retention keeps the best one, and export takes the one asked for."""
    asked = {**RISING, "early_stopping_patience": 2, "checkpoints_kept": 1, "export_from": "best"}
    training = train(overshooting(), tmp_path, **asked)
    last, _ = training.store.newest()
    chosen, ending = pick_for_export(training.store, training.plan)
    losses = {line["step"]: line["loss"] for line in training.evaluations() if line["split"] == "validation"}

    best_step = min((step for step in losses if step), key=losses.get)
    assert last.step < 12
    assert is_trained(last, training.plan)
    assert chosen.step == best_step == ending["best"]["step"]
    assert last.step == best_step + 2
    assert "2 evaluations without a better loss" in ending["ended_early"]


def test_best_and_patience_survive_stops_at_every_place(tmp_path):
    """Stopped at each question whether to stop, the run ends at the same update with the same best."""
    asked = {**RISING, "early_stopping_patience": 2}
    whole = train(overshooting(), tmp_path / "whole", **asked)
    expected = pick_for_export(whole.store, whole.plan)[1]
    for place in range(1, 30, 4):
        folder = tmp_path / str(place)
        train(overshooting(), folder, stop_at=place, **asked)
        again = train(overshooting(), folder, **asked)

        assert pick_for_export(again.store, again.plan)[1] == expected
        assert [line["loss"] for line in read_lines(folder / "metrics.jsonl")] == [
            line["loss"] for line in read_lines(tmp_path / "whole" / "metrics.jsonl")
        ]
