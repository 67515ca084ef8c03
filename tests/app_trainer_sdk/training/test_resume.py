"""Resuming is exact: a job that was stopped or killed anywhere makes the same numbers as one that was not."""

from __future__ import annotations

import dataclasses
import math
from itertools import chain
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch_helpers import (
    ListRows,
    drive,
    in_new_process,
    make_trainer,
    open_training,
    read_lines,
    same_tensors,
    train,
)

from app_trainer_sdk.errors import BadData, BadJob, InternalError
from app_trainer_sdk.streams import IterableStream, StatefulStream
from app_trainer_sdk.testing.toys import ToyReader
from app_trainer_sdk.training import supervised
from app_trainer_sdk.training.checkpoint import load_checkpoint
from app_trainer_sdk.values import Examination

STEADY = {
    "optimizer": "sgd", "beta1": 0.0, "schedule": "constant", "warmup_updates": 0, "evaluate_every": 0,
    "checkpoint_every": 1000,
}  # fmt: skip


class Weight(nn.Module):
    """One number."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))


def counting_trainer(rows):
    return make_trainer(
        lambda run: Weight(),
        lambda modules, values, random: (modules.root.w * torch.tensor(values)).sum(),
        [float(row) for row in range(rows)],
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Row numbers of every update of B1's uninterrupted run."""
    return TestOrder.part(tmp_path_factory.mktemp("whole"), 0, 0)


class TestOrder:
    JOB: ClassVar = {"epochs": 3, "global_batch": 2, **STEADY}
    CHECKS = 2  # asked before the microbatch and after the update

    @staticmethod
    def part(directory, stop_after, workers):
        """Row numbers of one start, in order, as one list for each update."""
        trainer = counting_trainer(10)
        train(
            trainer, Path(directory), stop_at=stop_after * TestOrder.CHECKS, dataloader_workers=workers,
            **TestOrder.JOB,
        )  # fmt: skip
        return trainer.trained

    def test_every_epoch_is_a_permutation(self, whole):
        """B1: fifteen updates of two rows visit each of ten rows once an epoch, each time in another order."""
        epochs = [[row for rows in whole[start : start + 5] for row in rows] for start in (0, 5, 10)]

        assert len(whole) == 15
        assert [sorted(epoch) for epoch in epochs] == [[*range(10)]] * 3
        assert len({tuple(epoch) for epoch in epochs}) == 3

    def test_stopped_after_k(self, tmp_path, whole):
        """B1: stopped after update k and resumed in a new process, the joined ids are those of no stop."""
        firsts = {k: self.part(tmp_path / str(k), k, 0) for k in range(1, 15)}
        seconds = in_new_process(_order_parts, str(tmp_path), [*firsts])

        assert [len(first) for first in firsts.values()] == [*firsts]
        assert [firsts[k] + seconds[k] for k in firsts] == [whole] * 14

    def test_three_stops_in_one_epoch(self, tmp_path, whole):
        """B1: stopped after 1, 2 and 4 batches of one epoch, each resumed in a new process."""
        parts = [in_new_process(_order_part, str(tmp_path), after, 0) for after in (1, 1, 2, 0)]

        assert [len(part) for part in parts] == [1, 1, 2, 11]
        assert [*chain(*parts)] == whole

    def test_with_workers(self, tmp_path, whole):
        """B1: the same with two loader workers, and with their number changed between the starts."""
        parts = [
            in_new_process(_order_part, str(tmp_path), after, workers)
            for after, workers in ((1, 2), (1, 0), (5, 2), (0, 2))
        ]

        assert [len(part) for part in parts] == [1, 1, 5, 8]
        assert [*chain(*parts)] == whole


def _order_parts(directory, ks):
    return {k: TestOrder.part(Path(directory) / str(k), 0, 0) for k in ks}


def _order_part(directory, stop_after, workers):
    return TestOrder.part(directory, stop_after, workers)


class Told(ListRows):
    """Rows that tell weights, lengths and groups."""

    offset = 0

    def weights(self):
        return [(row + self.offset) % 4 for row in range(len(self))]

    lengths = weights

    def groups(self):
        return ["wide" if (row + self.offset) % 3 else "tall" for row in range(len(self))]


class TestSampling:
    MODES: ClassVar = [
        ("shuffled", "by_length"), ("shuffled", "by_group"), ("weighted", "mixed"), ("weighted", "by_length"),
        ("sequential", "mixed"),
    ]  # fmt: skip

    @staticmethod
    def trainer(offset=0):
        rows = Told([0.1 * row for row in range(14)])
        rows.offset = offset
        return make_trainer(lambda run: Adapter(), TestAdapter.loss, rows)

    @pytest.mark.parametrize(("sampling", "batching"), MODES)
    def test_stopped_in_every_mode(self, tmp_path, sampling, batching):
        """B1: in every mode, stopped after every third update until it is done, a run is the same."""
        job = {**STEADY, "epochs": 3, "global_batch": 4, "learning_rate": 0.1}
        job |= {"sampling": sampling, "batching": batching}
        whole = train(self.trainer(), tmp_path / "whole", **job)
        starts = 1
        while (cut := train(self.trainer(), tmp_path / "cut", stop_at=3 * 2, **job)).stopped:
            starts += 1

        assert starts > 3
        assert len(whole.applied()) == whole.plan.updates
        assert sum(line["examples"] for line in whole.metrics()) == whole.plan.examples_seen == 42
        assert cut.metrics() == whole.metrics()
        assert same_tensors(cut.snapshot().section("model"), whole.snapshot().section("model"))
        assert same_tensors(cut.snapshot().section("optimizer"), whole.snapshot().section("optimizer"))

    @pytest.mark.parametrize(("sampling", "batching"), MODES[:-1])
    def test_other_weights_are_refused(self, tmp_path, sampling, batching):
        """B1: a resume whose rows have other weights, lengths or groups would have another order."""
        job = {**STEADY, "epochs": 1, "global_batch": 4, "sampling": sampling, "batching": batching}
        train(self.trainer(), tmp_path, stop_at=2, **job)

        with pytest.raises(BadJob, match=r"expected '[0-9a-f]{16}', as in the checkpoint"):
            train(self.trainer(offset=1), tmp_path, **job)
        allowed = open_training(self.trainer(offset=1), tmp_path, **job)
        change = {"field": "dataset", "saved": "a", "now": "b", "step": 1}
        drive(dataclasses.replace(allowed, run=dataclasses.replace(allowed.run, changed=[change])))

        assert len(allowed.applied()) == allowed.plan.updates


class TestStream:
    JOB: ClassVar = {**STEADY, "updates": 11, "global_batch": 4, "microbatch": 2, "learning_rate": 0.1}

    @staticmethod
    def trainer(resume):
        def item(record, random):
            return record, 0.1 * record + random.python.random()

        def source(epoch):
            return ToyReader(14, epoch)

        stream = StatefulStream(source, item=item)
        if resume != "exact":
            stream = IterableStream(source, item=item, repeatable=resume == "by replay")
        return make_trainer(lambda run: Adapter(), TestAdapter.loss, stream, validation=[0.5, 1.5])

    @pytest.mark.parametrize("resume", ["exact", "by replay"])
    def test_stopped_anywhere(self, tmp_path, resume):
        """B3: stopped at each record, microbatch and update and resumed once, a run leaves the same metrics and
        weights, and its stream at the same place.
        """  # fmt: skip
        whole = train(self.trainer(resume), tmp_path / "whole", **self.JOB)
        for check in range(1, whole.token.checks + 1, 2):
            directory = tmp_path / str(check)
            stopped = train(self.trainer(resume), directory, stop_at=check, **self.JOB)
            resumed = train(self.trainer(resume), directory, **self.JOB)

            assert stopped.stopped, check
            assert resumed.metrics() == whole.metrics(), check
            assert same_tensors(resumed.snapshot().section("model"), whole.snapshot().section("model")), check
            assert resumed.snapshot().values["stream"] == whole.snapshot().values["stream"], check
        assert whole.snapshot().values["stream"]["epoch"] == 3
        assert whole.snapshot().values["stream"]["not_exact_after"] == []

    def test_a_stream_that_cannot_go_on(self, tmp_path):
        """Where no place can be kept a resume begins a new pass, and the checkpoint says where."""
        made = []
        for stop_at in (18, 25, 0):
            training = train(self.trainer("not exact"), tmp_path, stop_at=stop_at, **self.JOB)
            made.append(training.snapshot().values["counters"]["updates"])
        stream = training.snapshot().values["stream"]

        assert [line["step"] for line in training.metrics()] == [*range(1, 12)]
        assert 0 < made[0] < made[1] < made[2] == 11
        assert (stream["resume"], stream["not_exact_after"]) == ("not exact", made[:2])
        assert stream["epoch"] >= 2  # two passes were given up

    def test_a_stream_that_resumes_in_another_way(self, tmp_path):
        """A place of one kind says nothing to a stream of another: that begins a new pass and says so."""
        train(self.trainer("by replay"), tmp_path, stop_at=20, **self.JOB)
        training = train(self.trainer("exact"), tmp_path, **self.JOB)
        stream = training.snapshot().values["stream"]

        assert (stream["resume"], len(stream["not_exact_after"])) == ("exact", 1)

    def test_records_that_all_train_nothing_end_the_run(self, tmp_path):
        """I2: a whole pass of a stream without a unit is bad data."""
        stream = IterableStream(lambda epoch: [(0, 1.0)] * 6)
        trainer = make_trainer(lambda run: Adapter(), TestAdapter.loss, stream, units=lambda value: 0.0)

        with pytest.raises(BadData, match="8 records, a whole pass, were read and none has a unit"):
            train(trainer, tmp_path, **self.JOB)

    def test_other_splits_are_no_streams(self, tmp_path):
        """Evaluation visits every row, and a stream may have no end."""
        stream = IterableStream(lambda epoch: [(0, 1.0)] * 6)
        trainer = make_trainer(lambda run: Adapter(), TestAdapter.loss, stream, validation=stream)

        with pytest.raises(InternalError, match="the split validation is a stream"):
            train(trainer, tmp_path, **self.JOB)

    @pytest.mark.parametrize("rows", [None, 14])
    def test_examine_must_know(self, tmp_path, rows):
        """A stream that examine counts, or rows that it does not, would make another plan than is trained."""
        data = ListRows([0.1] * 14) if rows is None else IterableStream(lambda epoch: [(0, 1.0)] * 6)
        trainer = make_trainer(
            lambda run: Adapter(), TestAdapter.loss, data, examine=lambda self, run: Examination(rows=rows)
        )

        with pytest.raises(InternalError, match="examine told otherwise"):
            train(trainer, tmp_path, **self.JOB)


def test_a_checkpoint_at_the_end_of_an_epoch(tmp_path):
    """B2: resumed at step 8 of 16, exactly the second epoch's eight updates are made, each row once."""
    job = {"epochs": 2, "global_batch": 8, **STEADY}
    trainer = counting_trainer(64)
    train(trainer, tmp_path, stop_at=8 * 2, **job)
    first, trainer.trained[:] = list(trainer.trained), []
    training = train(trainer, tmp_path, **job)
    second, trainer.trained[:] = list(trainer.trained), []
    again = train(trainer, tmp_path, **job)

    assert (len(first), len(second)) == (8, 8)
    assert sorted(row for rows in second for row in rows) == [*range(64)]
    assert [line["step"] for line in training.metrics()] == [*range(1, 17)]
    assert trainer.trained == []
    assert again.metrics() == training.metrics()


class TestRate:
    @pytest.mark.parametrize("k", range(1, 10))
    def test_linear_decay(self, tmp_path, k):
        """B3: the rates 1.0, 0.9 ... 0.1 are the same when the run is stopped after k updates and resumed."""
        job = {**STEADY, "schedule": "linear", "learning_rate": 1.0, "updates": 10, "global_batch": 1}
        train(counting_trainer(10), tmp_path, stop_at=k * 2, **job)
        training = train(counting_trainer(10), tmp_path, **job)

        assert [line["learning_rate"] for line in training.metrics()] == [
            1.0 * (1.0 - number / 10) for number in range(10)
        ]
        assert [line["learning_rate"] for line in training.metrics()] == pytest.approx(
            [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
        )

    @pytest.mark.parametrize("k", range(1, 10))
    def test_warm_up_and_accumulation(self, tmp_path, k):
        """B3: the same with three updates of warm-up and accumulation 3."""
        job = {
            **STEADY, "schedule": "linear", "learning_rate": 0.9, "updates": 10, "microbatch": 1,
            "gradient_accumulation_steps": 3, "warmup_updates": 3,
        }  # fmt: skip
        train(counting_trainer(30), tmp_path, stop_at=k * 4, **job)
        stopped = len(read_lines(tmp_path / "metrics.jsonl"))
        training = train(counting_trainer(30), tmp_path, **job)

        assert stopped == k
        assert [line["learning_rate"] for line in training.metrics()] == pytest.approx(
            [0.3, 0.6, 0.9, *(0.9 * (1 - number / 7) for number in range(7))]
        )


class Adapter(nn.Module):
    """B6's model: a frozen linear map and a rank-2 adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(4, 4).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, 4))
        self.b = nn.Parameter(torch.zeros(4, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


class TestAdapter:
    JOB: ClassVar = {
        "updates": 6,
        "global_batch": 2,
        "checkpoint_every": 1,
        "checkpoints_kept": 10,
        "evaluate_every": 0,
    }

    @staticmethod
    def loss(modules, values, random):
        x = torch.tensor(values).unsqueeze(-1) * torch.arange(4) * 0.1
        return (modules.root(x) - 1.0).pow(2).sum()

    @staticmethod
    def trainer():
        return make_trainer(lambda run: Adapter(), TestAdapter.loss, [float(row) for row in range(12)])

    def test_resumed_in_a_new_process(self, tmp_path):
        """B6: the adapter comes back bit for bit, the next loss is the uninterrupted one, files do not grow."""
        whole = train(self.trainer(), tmp_path / "whole", **self.JOB)
        train(self.trainer(), tmp_path / "cut", stop_at=3 * 2, **self.JOB)
        saved = in_new_process(_resumed_adapter, str(tmp_path / "cut"))
        cut = train(self.trainer(), tmp_path / "cut", **self.JOB)

        assert saved["equal"]
        assert saved["trainable"] == 16
        assert cut.metrics() == whole.metrics()
        sizes = [
            (each.path / f"{section}.safetensors").stat().st_size
            for section in ("model", "optimizer")
            for each in cut.store.find()
        ]
        assert len(set(sizes[:6])) == 1
        assert len(set(sizes[6:])) == 1
        assert sorted(cut.snapshot().section("model")) == ["a", "b"]

    def test_a_missing_adapter_file(self, tmp_path):
        """B6: a checkpoint without the adapter's file is not resumed from, and reading it by force raises."""
        training = train(self.trainer(), tmp_path, **self.JOB)
        newest, _ = training.store.newest()
        (newest.path / "model.safetensors").unlink()
        again = open_training(self.trainer(), tmp_path, **self.JOB)
        older, skipped = again.store.newest()

        assert (newest.step, older.step) == (6, 5)
        assert [each.problem for each in skipped] == ["model.safetensors is missing"]
        with pytest.raises(InternalError, match="a is missing in the checkpoint"):
            supervised.begin(again.trainer, again.run, load_checkpoint(newest))


def _resumed_adapter(directory):
    training = open_training(TestAdapter.trainer(), Path(directory), **TestAdapter.JOB)
    saved = training.snapshot()
    state = supervised.begin(training.trainer, training.run, saved)
    trainable = [each for each in state.modules.root.parameters() if each.requires_grad]
    return {
        "equal": same_tensors(training.trainer.snapshot(state).tensors, {
            name: each for name, each in saved.tensors.items() if not name.startswith("random/")
        }),
        "trainable": sum(each.numel() for each in trainable),
    }  # fmt: skip


class Noisy(nn.Module):
    """Batch norm, dropout and a layer: everything a half-made update could leave behind."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 1)
        )

    def forward(self, x):
        return self.layers(x).squeeze(-1)


def _noisy_loss(modules, values, random):
    x = torch.tensor(values).unsqueeze(-1)
    noise = torch.randn(x.shape, generator=random.torch()) * 0.1
    return (modules.root(x + noise) - x).pow(2).sum()


class TestStopAnywhere:
    JOB: ClassVar = {
        "epochs": 2, "microbatch": 2, "gradient_accumulation_steps": 2, "evaluate_every": 2,
        "warmup_updates": 2, "checkpoint_every": 3, "checkpoints_kept": 1, "learning_rate": 0.05,
    }  # fmt: skip

    @staticmethod
    def trainer():
        def loss(modules, values, random):
            x = torch.tensor(values).unsqueeze(-1) * torch.tensor([1.0, 2.0, 3.0])
            noise = torch.randn(x.shape, generator=random.torch()) * 0.1
            error = (modules.root(x + noise) - torch.tensor(values)).pow(2)
            return error.sum()

        rows = [0.1 * row for row in range(6)]
        return make_trainer(lambda run: Noisy(), loss, rows, validation=rows[:3], minimum_rows=2)

    def test_every_check_of_a_run(self, tmp_path):
        """B3: stopped at each place a run asks whether to stop - updates, microbatches, evaluations, the last
        one included - and resumed once, a run leaves the same metrics, evaluations and weights.
        """  # fmt: skip
        whole = train(self.trainer(), tmp_path / "whole", **self.JOB)
        for check in range(1, whole.token.checks + 1):
            directory = tmp_path / str(check)
            stopped = train(self.trainer(), directory, stop_at=check, **self.JOB)
            resumed = train(self.trainer(), directory, **self.JOB)

            assert stopped.stopped, check
            assert resumed.metrics() == whole.metrics(), check
            assert resumed.evaluations() == whole.evaluations(), check
            assert same_tensors(resumed.snapshot().section("model"), whole.snapshot().section("model")), check
            assert same_tensors(resumed.snapshot().section("optimizer"), whole.snapshot().section("optimizer"))

    @pytest.mark.parametrize("average", [0.0, 0.9])
    def test_three_stops_within_one_pass(self, tmp_path, average):
        """B1: stopped after 1, 2 and 4 updates of a pass of six, resumed each time, a run is still the same."""
        job = {**self.JOB, "microbatch": 1, "evaluate_every": 5, "ema_decay": average}
        trainer = make_trainer(
            lambda run: nn.Sequential(nn.Linear(1, 8), nn.Dropout(0.2), nn.Linear(8, 1)), _noisy_loss,
            [0.1 * row for row in range(12)], validation=[0.3, 0.4],
        )  # fmt: skip
        whole = train(trainer, tmp_path / "whole", **job)
        made = []
        for updates in (1, 1, 2):  # an update asks three times, and the first start evaluates before it
            evaluations = 2 * 2 if not made else 0
            stopped = train(trainer, tmp_path / "cut", stop_at=3 * updates + evaluations, **job)
            made.append(len(stopped.metrics()))
        resumed = train(trainer, tmp_path / "cut", **job)

        assert made == [1, 2, 4]
        assert whole.plan.updates_per_epoch == 6
        assert resumed.metrics() == whole.metrics()
        assert resumed.evaluations() == whole.evaluations()
        assert same_tensors(resumed.snapshot().tensors, whole.snapshot().tensors)

    def test_stopped_again_and_again(self, tmp_path):
        """B3: stopped at every ninth check until it is done, a run is still the same."""
        whole = train(self.trainer(), tmp_path / "whole", **self.JOB)
        starts = 0
        while (training := train(self.trainer(), tmp_path / "cut", stop_at=9, **self.JOB)).stopped:
            starts += 1

        assert starts > 1
        assert training.metrics() == whole.metrics()
        assert training.evaluations() == whole.evaluations()
        assert same_tensors(training.snapshot().section("model"), whole.snapshot().section("model"))


def test_a_failure_past_the_checkpoint(tmp_path):
    """B1: lines of updates that a failure took with it are cut on resume, and made again the same."""
    job = {**STEADY, "epochs": 2, "global_batch": 2, "checkpoint_every": 3, "learning_rate": 0.1}
    fail_at = [8]

    def loss(modules, values, random):
        fail_at[0] -= 1
        if fail_at[0] == 0:
            raise OSError("the machine went away")
        return (modules.root.w * torch.tensor(values)).sum()

    trainer = make_trainer(lambda run: Weight(), loss, [float(row) for row in range(10)])
    with pytest.raises(OSError, match="went away"):
        train(trainer, tmp_path / "cut", **job)
    written = len(read_lines(tmp_path / "cut" / "metrics.jsonl"))
    resumed = train(trainer, tmp_path / "cut", **job)
    whole = train(trainer, tmp_path / "whole", **job)

    assert written == 7  # and the newest checkpoint is of update 6
    assert resumed.metrics() == whole.metrics()


def test_the_loss_scale_goes_on(tmp_path):
    """H1: scale and growth counter after a resume are those of the uninterrupted run, overflows included."""

    def trainer():
        attempts = iter([1.0, math.inf, 1.0, 1.0, 1.0, 1.0])

        def loss(modules, values, random):
            factor = next(attempts)
            return (
                modules.root.w * factor
                if math.isfinite(factor)
                else modules.root.w * 1e38 + modules.root.w * 1e38
            )

        return make_trainer(lambda run: Weight(), loss, [0.0] * 8)

    job = {**STEADY, "updates": 5, "global_batch": 1, "settings": {"mixed_precision": "fp16"}}
    whole = train(trainer(), tmp_path / "whole", **job)
    one = trainer()
    first = train(one, tmp_path / "cut", stop_at=6, **job)
    between = first.snapshot().values["scaler"]
    second = train(one, tmp_path / "cut", **job)

    assert (between["scale"], between["_growth_tracker"]) == (32768.0, 1)
    assert second.snapshot().values["scaler"] == whole.snapshot().values["scaler"]
    assert second.metrics() == whole.metrics()
