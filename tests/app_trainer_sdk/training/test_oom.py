"""Out of memory: noticed in any words, let go of, tried again with less, told when nothing is left."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch
from small_models import PLAIN, Scalars
from torch import nn
from torch_helpers import drive, make_trainer, open_training, train

from app_trainer_sdk.errors import ExitCode, GpuOutOfMemory, HostOutOfMemory, InternalError
from app_trainer_sdk.outcome import code_of, memory_code
from app_trainer_sdk.training.oom import _why_not, forget_frames, is_out_of_memory
from app_trainer_sdk.values import LossTerms, Modules

FAKE = "CUDA out of memory. Tried to allocate 50.00 MiB. GPU 0 has a total capacity of 8.00 GiB"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError(FAKE), ExitCode.GPU_OUT_OF_MEMORY),
        (RuntimeError("CUDA error: out of memory"), ExitCode.GPU_OUT_OF_MEMORY),
        (RuntimeError("HIP out of memory. Tried to allocate"), ExitCode.GPU_OUT_OF_MEMORY),
        (RuntimeError("HIPBLAS_STATUS_ALLOC_FAILED when calling"), ExitCode.GPU_OUT_OF_MEMORY),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), 79),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), ExitCode.GPU_OUT_OF_MEMORY),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), ExitCode.HOST_OUT_OF_MEMORY),
        (MemoryError(), ExitCode.HOST_OUT_OF_MEMORY),
        (OSError(12, "Cannot allocate memory"), ExitCode.HOST_OUT_OF_MEMORY),
        (RuntimeError("shapes do not match"), None), (ValueError("out of memory of the good old days"), None),
    ],
)  # fmt: skip
def test_words(error, code):
    """E1: every library's way to say it is known, alone and anywhere along the chain of an error."""
    chained = InternalError("the batch failed")
    chained.__cause__ = ValueError("while encoding")
    chained.__cause__.__context__ = error

    assert memory_code(error) == memory_code(chained) == code
    assert is_out_of_memory(chained) == (code is not None)
    assert code_of(error) == (code or ExitCode.INTERNAL_ERROR)


def three_deep(kept):
    def first():
        second()

    def second():
        held = torch.ones(12_500_000)
        kept.append(weakref.ref(held))
        third()

    def third():
        try:
            raise KeyError("a cause")
        except KeyError as error:
            raise torch.OutOfMemoryError(FAKE) from error

    first()


def test_frames_are_forgotten():
    """D4: a stored out-of-memory error lets go of the tensors of its frames; text and place stay."""
    kept, stored = [], []
    try:
        three_deep(kept)
    except RuntimeError as error:
        text = forget_frames(error)
        stored.append(error)

    assert kept[0]() is None
    assert stored[0].__cause__ is None
    assert text.startswith("OutOfMemoryError: CUDA out of memory. Tried to allocate 50.00 MiB.")
    assert "(in third at test_oom.py:" in text


def test_a_generator_is_closed():
    """A failed frame of a generator is cleared too, and its clean-up runs."""
    closed = []

    def steps():
        held = torch.ones(1000)
        kept.append(weakref.ref(held))
        try:
            yield 1
            raise MemoryError("in a generator")
        finally:
            closed.append(True)

    kept = []
    try:
        list(steps())
    except MemoryError as error:
        forget_frames(error)

    assert closed
    assert kept[0]() is None


def rows_trainer(most, *, values=None, deep=False, **attributes):
    """A trainer whose loss fits only batches of up to ``most`` rows; ``tried`` tells what was asked of it."""

    def loss(modules, values, random):
        if torch.is_grad_enabled():
            tried.append((len(values), [reference() is None for reference in kept]))
            if len(values) > most[0]:
                three_deep(kept) if deep else _fail(modules, values)
        x = torch.tensor(values)
        noise = torch.stack([torch.randn((), generator=random.row(at).torch()) for at in range(len(values))])
        return ((modules.root.w * x - noise) ** 2).sum()

    tried, kept = [], []
    values = values or [0.5 + number / 8 for number in range(16)]
    made = make_trainer(lambda run: Scalars(1.5), loss, values, validation=values[:3], **attributes)
    made.tried = tried
    return made


def _fail(modules, values):
    (modules.root.w.sum() * len(values)).backward()  # gradients of the failed try must not count
    raise torch.OutOfMemoryError(FAKE)


def test_rows_tried_are_8_4_2(tmp_path):
    """D4: the failed frame's 50 MB are gone before the next try; rows tried are 8, 4, 2; the run tells it."""
    trainer = rows_trainer([2], deep=True)
    training = train(trainer, tmp_path, microbatch=8, updates=1, **PLAIN)
    rows = [rows for rows, _ in trainer.tried]

    assert rows[:3] == [8, 4, 2]
    assert all(all(dead) for _, dead in trainer.tried)
    (line,) = training.metrics()
    tried = line["out_of_memory"]
    assert [(each["microbatch"], each["next"]) for each in tried] == [(8, 4), (4, 2)]
    assert tried[0]["inputs"]["rows"] == 8
    assert "OutOfMemoryError: CUDA out of memory" in tried[0]["error"]
    assert training.snapshot().values["counters"]["out_of_memory"] == 2
    said = [facts for kind, facts in training.channel.said if kind == "recovered"]
    assert [(each["step"], each["microbatch"]) for each in said] == [(1, 8), (1, 4)]


def test_the_update_is_the_one_that_would_have_been_made(tmp_path):
    """Halving changes neither rows nor loss nor weights beyond tolerance; the update that did it says so."""
    settings = {**PLAIN, "learning_rate": 0.01, "microbatch": 4, "global_batch": 8, "updates": 6,
                "evaluate_every": 2, "optimizer": "adamw"}  # fmt: skip
    plain = train(rows_trainer([99]), tmp_path / "plain", **settings)
    most = [99]
    halved_trainer = rows_trainer(most)
    halved = open_training(halved_trainer, tmp_path / "halved", **settings)
    seen = []

    def lose_memory(kind, **facts):
        seen.append(kind)
        most[0] = 2 if seen.count("evaluation") >= 2 else 99

    halved.channel.say = lose_memory
    drive(halved)
    pairs = list(zip(plain.metrics(), halved.metrics(), strict=True))

    assert [line["ids"] for line, _ in pairs] == [line["ids"] for _, line in pairs]
    assert [line["loss"] for line, _ in pairs] == pytest.approx([line["loss"] for _, line in pairs], rel=1e-6)
    assert torch.allclose(plain.snapshot().tensors["model/w"], halved.snapshot().tensors["model/w"], atol=1e-6)
    assert [step for step, (_, line) in enumerate(pairs, 1) if "out_of_memory" in line] == [3]
    assert plain.evaluations()[-1]["loss"] == pytest.approx(halved.evaluations()[-1]["loss"], rel=1e-6)


def test_a_trial_counts_with_the_updates_it_made(tmp_path):
    """E4: memory that ends at 48 rows after update 100 leads to 32, and all three updates left are made."""
    most = [99]
    trainer = rows_trainer(most, values=[0.5 + number / 8 for number in range(64)])
    settings = {**PLAIN, "learning_rate": 0.001, "microbatch": 64, "global_batch": 64, "updates": 103,
                "evaluate_every": 100}  # fmt: skip
    training = open_training(trainer, tmp_path, **settings)
    seen = []

    def lose_memory(kind, **facts):
        seen.append((kind, facts))
        most[0] = 47 if [each for each, _ in seen].count("evaluation") >= 2 else 99

    training.channel.say = lose_memory
    drive(training)
    lines = training.metrics()

    assert [rows for rows, _ in trainer.tried] == [64] * 101 + [32, 32] * 3
    assert [line["step"] for line in lines if line["applied"]] == [*range(1, 104)]
    assert [line["step"] for line in lines if "out_of_memory" in line] == [101]
    assert [(facts["step"], facts["next"]) for kind, facts in seen if kind == "recovered"] == [(101, 32)]
    assert training.snapshot().values["counters"]["microbatch"] == 32


def test_a_resume_goes_on_with_the_smaller_microbatch(tmp_path):
    """B2: killed after memory ran out and resumed, a run makes the same updates and does not try again."""
    settings = {**PLAIN, "learning_rate": 0.01, "microbatch": 8, "updates": 5, "checkpoint_every": 1}
    whole = train(rows_trainer([3]), tmp_path / "whole", **settings)
    train(rows_trainer([3]), tmp_path / "parts", stop_at=14, **settings)
    trainer = rows_trainer([3])
    resumed = train(trainer, tmp_path / "parts", **settings)

    assert trainer.tried
    assert max(rows for rows, _ in trainer.tried) <= 2
    assert resumed.metrics() == whole.metrics()
    assert resumed.snapshot().tensors["model/w"].tolist() == whole.snapshot().tensors["model/w"].tolist()


class Blocks(nn.Module):
    """One block that may be recomputed."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Scalars(1.0)


def test_nothing_left_to_halve(tmp_path):
    """E1: at one row it ends with 79: phase, inputs, memory held, and settings that take less."""

    def build(run):
        root = Blocks()
        return Modules(root, blocks=[root.block])

    def loss(modules, values, random):
        raise torch.OutOfMemoryError(FAKE)

    trainer = make_trainer(build, loss, [1.0] * 4)
    with pytest.raises(GpuOutOfMemory) as caught:
        train(trainer, tmp_path, microbatch=2, updates=1, global_batch=2)
    message = str(caught.value)

    assert caught.value.code == 79
    for part in (
        "no memory for update 1 in phase train at microbatch 1", "'rows': 1", "allocated ", "peak ",
        "OutOfMemoryError: CUDA out of memory", "/hyperparameters/gradient_checkpointing to true",
        "/hyperparameters/optim_8bit to true", "or take a card with more memory",
    ):  # fmt: skip
        assert part in message


def test_the_hosts_memory(tmp_path):
    """The CPU's allocator is the host's: what cannot be halved ends with its own code."""

    def loss(modules, values, random):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    with pytest.raises(HostOutOfMemory):
        train(make_trainer(lambda run: Scalars(1.0), loss, [1.0] * 4), tmp_path, microbatch=1, updates=1)


def test_rows_that_see_each_other(tmp_path):
    """Rows of a coupled loss are never split: memory that runs out ends the run and says why."""
    trainer = rows_trainer([2], coupled_rows=True)
    with pytest.raises(GpuOutOfMemory, match="rows of this trainer's batch see each other"):
        train(trainer, tmp_path, microbatch=8, updates=1)

    assert [rows for rows, _ in trainer.tried] == [8]


def test_the_least_rows_of_a_microbatch(tmp_path):
    """A trainer with batch norm keeps its two rows."""
    trainer = rows_trainer([1], minimum_rows=2)
    with pytest.raises(GpuOutOfMemory, match="2 is the least a microbatch may have"):
        train(trainer, tmp_path, microbatch=6, updates=1)

    assert [rows for rows, _ in trainer.tried] == [6, 3, 2]


def test_batch_norm_and_loader_workers(tmp_path):
    """A failed try leaves no trace in running statistics; workers are started anew for the smaller pieces."""

    def build(run):
        return nn.Sequential(nn.Linear(1, 3), nn.BatchNorm1d(3))

    def trainer_of(most):
        def loss(modules, values, random):
            scores = modules.root(torch.tensor(values)[:, None])
            if torch.is_grad_enabled() and len(values) > most:
                raise torch.OutOfMemoryError(FAKE)
            return LossTerms(scores.pow(2).sum())

        return make_trainer(build, loss, [float(number) for number in range(16)], minimum_rows=2)

    settings = {**PLAIN, "learning_rate": 0.01, "global_batch": 8, "updates": 2}
    halved = train(trainer_of(4), tmp_path / "halved", microbatch=8, dataloader_workers=1, **settings)
    planned = train(trainer_of(99), tmp_path / "planned", microbatch=4, **settings)

    for name, tensor in planned.snapshot().section("model").items():
        assert torch.equal(tensor, halved.snapshot().section("model")[name]), name


def test_a_stream_that_cannot_be_read_again():
    """Where the window cannot be read again nothing is tried with half of it."""
    trainer = SimpleNamespace(coupled_rows=False, minimum_rows=1)
    place = SimpleNamespace(resume="not exact")

    assert "cannot be read again" in _why_not(trainer, SimpleNamespace(place=place), 8)
    assert _why_not(trainer, SimpleNamespace(place=None), 8) == ""


def test_other_errors_are_not_retried(tmp_path):
    """A mistake in the loss is raised as it is."""

    def loss(modules, values, random):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes do not match"):
        train(make_trainer(lambda run: Scalars(1.0), loss, [1.0] * 4), tmp_path, microbatch=2, updates=1)
