"""How far training came, by its last checkpoint: patience, the best one, and that both survive a stop."""

from __future__ import annotations

import torch
from torch import nn
from torch_helpers import make_trainer, read_lines, train

from app_trainer_sdk.checkpoints import is_trained
from app_trainer_sdk.training.finished import pick_for_export

JOB = {"updates": 6, "global_batch": 2, "evaluate_every": 0, "checkpoint_every": 1000, "warmup_updates": 0}
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
    assert (ending["exported_step"], ending["exported"]) == (best_step, "the best one")


def test_a_best_one_that_nothing_was_is_told(tmp_path):
    """Where no evaluation has a finite value the last one is exported, and not called the best."""
    trainer = make_trainer(
        lambda run: nn.Linear(1, 1), lambda modules, values, draw: modules.root(torch.tensor([values])).sum(),
        [0.1, 0.2], validation=[float("nan")],
    )  # fmt: skip
    training = train(
        trainer, tmp_path, **{**JOB, "evaluate_every": 1, "export_from": "best", "global_batch": 1}
    )
    chosen, ending = pick_for_export(training.store, training.plan)

    assert chosen.step == ending["exported_step"] == JOB["updates"]
    assert ending["exported"] == "the last one, since no evaluation had a finite value"


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


def test_a_finished_training_is_known(tmp_path):
    """B2: a checkpoint of the last update with nothing pending needs no training."""
    training = train(overshooting(), tmp_path, **JOB)

    assert is_trained(training.store.newest()[0], training.plan)


def test_the_last_evaluation_is_made_after_a_stop_in_it(tmp_path):
    """B2: stopped in the evaluation after the last update, the job is not trained until that was made."""
    trainer = overshooting()
    stopped = train(trainer, tmp_path, stop_at=6 * 2, **JOB)
    checkpoint, _ = stopped.store.newest()
    before = is_trained(checkpoint, stopped.plan)
    resumed = train(trainer, tmp_path, **JOB)

    assert (checkpoint.step, before) == (6, False)
    assert [line["step"] for line in resumed.evaluations()] == [6]
    assert len(resumed.metrics()) == 6
