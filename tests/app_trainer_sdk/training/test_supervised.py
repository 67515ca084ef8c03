"""The ordinary loop: what it builds, from which seeds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_models import PLAIN, Scalars, adapted_trainer
from torch import nn
from torch_helpers import as_bytes, drive, in_new_process, make_trainer, open_training, same_tensors, train

from app_trainer_sdk.training import supervised


class TestSeeds:
    def test_equal_seeds_make_equal_runs(self, tmp_path):
        """N4: seeds 1, 2, 3, 1 in one process: the first and last runs are identical, the others differ."""
        finals = []
        for number, seed in enumerate([1, 2, 3, 1]):
            training = train(
                adapted_trainer(), tmp_path / str(number), updates=3, global_batch=4, seed=seed, **PLAIN
            )
            finals.append(training.snapshot().section("model"))

        assert same_tensors(finals[0], finals[3])
        assert not any(same_tensors(finals[0], finals[other]) for other in (1, 2))
        assert not same_tensors(finals[1], finals[2])

    def test_noise_and_dropout_differ_between_updates(self, tmp_path):
        """N4: no two microbatches draw the same noise or dropout; a second run draws the same as the first."""
        drawn = []

        def loss(modules, values, random):
            noise = float(torch.rand((), generator=random.torch()))
            mask = nn.functional.dropout(torch.ones(32), 0.5)
            drawn.append((noise, tuple(mask.tolist())))
            return modules.root.w.sum() * noise

        trainer = make_trainer(lambda run: Scalars(0.0), loss, [0] * 4)
        for name in ("1", "2"):
            train(trainer, tmp_path / name, epochs=3, microbatch=1, global_batch=2, **PLAIN)
        first, second = drawn[:12], drawn[12:]

        assert first == second
        assert [len(set(values)) for values in zip(*first, strict=True)] == [12, 12]

    def test_two_processes(self, tmp_path):
        """N4: seed 7 with a fresh head gives the same first and last weights in two processes."""
        torch.rand(5)

        assert in_new_process(_seeded_weights, str(tmp_path / "1")) == _seeded_weights(str(tmp_path / "2"))

    @pytest.mark.parametrize("accumulation", [1, 4])
    def test_rates_do_not_depend_on_accumulation(self, tmp_path, accumulation):
        """H2: twelve updates with three of warm-up have the same rates at accumulation 1 and 4."""
        training = train(
            adapted_trainer(), tmp_path, updates=12, global_batch=8, microbatch=8 // accumulation,
            gradient_accumulation_steps=accumulation,
            **{**PLAIN, "schedule": "linear", "warmup_updates": 3, "learning_rate": 0.9},
        )  # fmt: skip

        assert [line["learning_rate"] for line in training.metrics()] == pytest.approx(
            [0.3, 0.6, 0.9, *(0.1 * (9 - number) for number in range(9))]
        )

    def test_what_ran_before_does_not_matter(self, tmp_path):
        """N4: draws from torch's global generator before a run do not change its first weights."""
        first = open_training(adapted_trainer(), tmp_path / "1", updates=1, global_batch=4, seed=7, **PLAIN)
        one = supervised.begin(first.trainer, first.run, None)
        torch.rand(1000)
        other = supervised.begin(first.trainer, first.run, None)

        assert same_tensors(dict(one.modules.root.state_dict()), dict(other.modules.root.state_dict()))


def _seeded_weights(directory):
    training = open_training(adapted_trainer(), Path(directory), updates=2, global_batch=4, seed=7, **PLAIN)
    state = supervised.begin(training.trainer, training.run, None)
    first = {name: as_bytes(each) for name, each in state.modules.root.state_dict().items()}
    drive(training)
    last = {name: as_bytes(each) for name, each in training.snapshot().section("model").items()}
    return first, last
