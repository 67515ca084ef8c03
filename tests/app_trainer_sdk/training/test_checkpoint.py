"""Checkpoints on disk: whole or skipped with a reason, rotated only after a new one, bytes as saved."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_helpers import in_new_process, make_trainer, open_training, same_tensors, train

from app_trainer_sdk.checkpoints import inspect_checkpoint
from app_trainer_sdk.errors import BadJob, InternalError
from app_trainer_sdk.training import supervised
from app_trainer_sdk.training.checkpoint import CheckpointStore, copied, load_checkpoint
from app_trainer_sdk.values import Modules, Snapshot

DOCUMENTS = {"plan.json": {"updates": 40}, "identity.json": {"seed": 1}}


def snapshot(value=1.0):
    tensors = {"model/w": torch.full((64,), value), "optimizer/w/exp_avg": torch.zeros(64)}
    return Snapshot(tensors, {"counters": {"updates": 1}})


def store_with(directory, *steps, run="mine", **options):
    store = CheckpointStore(directory, run, **options)
    for step in steps:
        store.save(step, snapshot(step), DOCUMENTS)
    return store


def steps(directory, run="mine"):
    """Steps of the valid checkpoints of a run, read anew."""
    return [
        each.step for each in CheckpointStore(directory, run).find() if each.run == run and not each.problem
    ]


class TestDamage:
    def damage(self, folder, kind):
        weights = folder / "model.safetensors"
        if kind == "cut to half":
            weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
        elif kind == "no bytes":
            (folder / "optimizer.safetensors").write_bytes(b"")
        elif kind == "wrong digest":
            data = bytearray(weights.read_bytes())
            data[-1] ^= 1
            weights.write_bytes(data)
        elif kind == "no manifest":
            (folder / "manifest.json").unlink()
        elif kind == "half a manifest":
            (folder / "manifest.json").write_text((folder / "manifest.json").read_text()[:50])
        elif kind == "a file gone":
            (folder / "state.json").unlink()

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [
            ("cut to half", "model.safetensors has"),
            ("no bytes", "optimizer.safetensors has 0 bytes"),
            ("wrong digest", "model.safetensors does not have the digest"),
            ("no manifest", "it has no manifest"),
            ("half a manifest", "its manifest cannot be read"),
            ("a file gone", "state.json is missing"),
        ],
    )
    def test_the_newest_whole_one_is_used(self, tmp_path, kind, reason):
        """C1: a damaged step 30 is skipped with its reason, and step 20 is resumed from."""
        store_with(tmp_path, 10, 20, 30)
        self.damage(tmp_path / "step-00000030", kind)
        newest, skipped = CheckpointStore(tmp_path, "mine").newest()

        assert newest.step == 20
        assert [each.path.name for each in skipped] == ["step-00000030"]
        assert skipped[0].problem.startswith(reason)
        assert load_checkpoint(newest).tensors["model/w"][0] == 20.0

    def test_leftovers_of_a_kill(self, tmp_path):
        """C1: what a killed save or a killed removal left is never a checkpoint and goes with the next save."""
        store = store_with(tmp_path, 10)
        shutil.copytree(tmp_path / "step-00000010", tmp_path / ".step-00000020.4711.tmp")
        shutil.copytree(tmp_path / "step-00000010", tmp_path / ".step-00000009.removed.tmp")

        assert steps(tmp_path) == [10]

        store.save(30, snapshot(), DOCUMENTS)

        assert sorted(each.name for each in tmp_path.iterdir()) == ["step-00000010", "step-00000030"]

    def test_a_damaged_folder_makes_room(self, tmp_path):
        """C1: the step that was damaged can be saved again under its name."""
        store = store_with(tmp_path, 10, 20)
        self.damage(tmp_path / "step-00000020", "no manifest")
        saved = store.save(20, snapshot(7.0), DOCUMENTS)

        assert saved.path.name == "step-00000020"
        assert load_checkpoint(saved).tensors["model/w"][0] == 7.0

    def test_readable_without_the_library(self, tmp_path):
        """A checkpoint is safetensors and JSON; the manifest names every other file with size and digest."""
        store_with(tmp_path, 5)
        folder = tmp_path / "step-00000005"
        manifest = json.loads((folder / "manifest.json").read_text())

        assert {each.name for each in folder.iterdir()} == {*manifest["files"], "manifest.json"}
        assert {each.suffix for each in folder.iterdir()} == {".json", ".safetensors"}
        assert (manifest["run"], manifest["step"]) == ("mine", 5)

    def test_killed_while_saving(self, tmp_path):
        """C1: a process that saves in a loop, killed at six moments, always leaves a checkpoint that loads."""
        last = -1
        for attempt in range(6):
            pid, status = in_new_process(_save_until_killed, str(tmp_path), last + 1, 0.02 + 0.013 * attempt)
            newest, _ = CheckpointStore(tmp_path, "mine").newest()

            assert status == 9, pid
            assert newest is not None
            assert newest.step >= last
            assert load_checkpoint(newest).tensors["model/w"][0] == newest.step
            last = newest.step


def _save_until_killed(directory, first, seconds):
    """Fork, save checkpoints in the child for ``seconds``, kill it; its pid and the signal that ended it."""
    import signal
    import time

    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        store = CheckpointStore(Path(directory), "mine")
        step = first
        while True:
            store.save(step, Snapshot({"model/w": torch.full((500_000,), float(step))}, {}), DOCUMENTS)
            store.retain(2)
            os.write(theirs, b".")
            step += 1
    os.read(ours, 1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return pid, status


class TestRetention:
    @pytest.mark.parametrize("order", ["equal", "reversed"])
    def test_by_step_and_never_by_the_clock(self, tmp_path, order):
        """C2: with equal and with reversed modification times, {300, 400} remain of four."""
        store = store_with(tmp_path, 100, 200, 300)
        for number, folder in enumerate(sorted(tmp_path.iterdir())):
            when = 1_000_000 if order == "equal" else 1_000_000 - number * 1000
            os.utime(folder, (when, when))
        store.save(400, snapshot(), DOCUMENTS)
        store.retain(2)

        assert steps(tmp_path) == [400, 300]

    def test_numbers_are_not_text(self, tmp_path):
        """C2: 1000 is newer than 900, also where a folder's name has outgrown its zeros."""
        store = store_with(tmp_path, 900, 1000, 100_000_000, 99_999_999)
        store.retain(3)

        assert steps(tmp_path) == [100_000_000, 99_999_999, 1000]

    def test_the_best_stays(self, tmp_path):
        """C2: keep=1 with best=100 and newest=400 leaves both."""
        store = store_with(tmp_path, 100, 200, 300, 400)
        store.retain(1, best=100)

        assert steps(tmp_path) == [400, 100]

    @pytest.mark.parametrize("foreign", [700, 100])
    def test_another_run_in_the_folder(self, tmp_path, foreign):
        """C2: a higher or equal step of another run is neither used nor removed, and removes none of ours."""
        store_with(tmp_path, foreign, run="other")
        store = store_with(tmp_path, 100)
        store.retain(1)
        newest, skipped = CheckpointStore(tmp_path, "mine").newest()

        assert (steps(tmp_path), steps(tmp_path, "other")) == ([100], [foreign])
        assert newest.step == 100
        assert {each.run for each in skipped} <= {"other"}

    @pytest.mark.parametrize("keep", [0, -1])
    def test_keeping_nothing_is_refused(self, tmp_path, keep):
        """C2: a keep value below 1 is refused."""
        store = store_with(tmp_path, 100)
        with pytest.raises(BadJob, match="at least 1"):
            store.retain(keep)

        assert steps(tmp_path) == [100]

    @settings(max_examples=15, deadline=None)
    @given(
        saved=st.lists(st.integers(0, 2000), min_size=1, max_size=5, unique=True), keep=st.integers(1, 3),
        damaged=st.sets(st.integers(0, 4)), best=st.integers(0, 4),
    )  # fmt: skip
    def test_newest_and_best_always_stay(self, tmp_path_factory, saved, keep, damaged, best):
        """C2: whatever was saved and damaged, retention leaves the newest whole checkpoint and the best."""
        directory = tmp_path_factory.mktemp("kept")
        store_with(directory, *saved)
        for number in damaged & set(range(len(saved))):
            (directory / f"step-{saved[number]:08d}" / "state.json").unlink()
        whole = [step for number, step in enumerate(saved) if number not in damaged]
        best_step = saved[best % len(saved)]
        CheckpointStore(directory, "mine").retain(keep, best=best_step)

        expected = sorted(whole, reverse=True)[:keep]
        assert steps(directory) == sorted({*expected, *({best_step} & set(whole))}, reverse=True)


class Tied(nn.Module):
    """An embedding and a head that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.embed(ids))


def tied_trainer():
    def loss(modules, values, random):
        ids = torch.tensor(values)
        return nn.functional.cross_entropy(modules.root(ids), ids, reduction="sum")

    return make_trainer(lambda run: Tied(), loss, [*range(16)])


TIED_JOB = {"updates": 4, "global_batch": 4, "optimizer": "sgd", "beta1": 0.0, "checkpoint_every": 2}


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path):
    """B8: one copy on disk, no missing key in a new process, one storage, one update moves both names."""
    training = train(tied_trainer(), tmp_path, stop_at=2 * 2, **TIED_JOB)
    newest, _ = training.store.newest()
    answer = in_new_process(_load_tied, str(tmp_path))

    assert newest.step == 2
    assert 512 < (newest.path / "model.safetensors").stat().st_size < 512 + 200
    assert training.snapshot().values["ties"] == {"head.weight": "embed.weight"}
    assert answer == {"names": ["embed.weight"], "same object": True, "moved alike": True, "equal": True}


def _load_tied(directory):
    training = open_training(tied_trainer(), Path(directory), **TIED_JOB)
    saved = training.snapshot()
    state = supervised.begin(training.trainer, training.run, saved)
    root = state.modules.root
    equal = torch.equal(root.head.weight, saved.tensors["model/embed.weight"])
    next(supervised.training_steps(training.trainer, training.run, state))
    return {
        "names": sorted(saved.section("model")), "same object": root.head.weight is root.embed.weight,
        "moved alike": torch.equal(root.head.weight, root.embed.weight)
        and not torch.equal(root.head.weight, saved.tensors["model/embed.weight"]),
        "equal": equal,
    }  # fmt: skip


class Stack(nn.Module):
    """Two blocks, one of them with a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)
        self.frozen = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.frozen(x)


# Torch's compiler imports a module of torch's that uses what torch deprecates; it goes when torch mends it.
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
# It looks at the .grad of what it traces, leaf or not; torch warns of that once in a process.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("wrapped", [{}, {"gradient_checkpointing": True}, {"torch_compile": True}])
def test_names_are_canonical(tmp_path, wrapped):
    """Names in a checkpoint are the model's own whatever wraps it: no frozen weight, no scratch buffer."""
    trainer = make_trainer(
        lambda run: Modules(root := Stack(), blocks=list(root.blocks)),
        lambda modules, values, random: modules.root(torch.tensor(values).reshape(-1, 1).repeat(1, 2)).sum(),
        [1.0, 2.0],
    )
    training = open_training(trainer, tmp_path, updates=1, global_batch=2, **wrapped)
    state = supervised.begin(training.trainer, training.run, None)
    names = set(training.trainer.snapshot(state).tensors)

    linear = {f"model/blocks.{number}.{kind}" for number in (0, 1) for kind in ("weight", "bias")}
    assert names == {*linear, "model/seen"}


def test_copies_are_copies(tmp_path):
    """What is saved does not change when training goes on: a CPU tensor is cloned, values pass through JSON."""
    tensor = torch.ones(3)
    taken = copied(Snapshot({"model/w": tensor}, {"pair": (1, 2.5)}))
    tensor.zero_()

    assert taken.tensors["model/w"].tolist() == [1.0, 1.0, 1.0]
    assert taken.values == {"pair": [1, 2.5]}


def test_a_name_without_a_section(tmp_path):
    """A tensor that names no section is our mistake or a trainer's, told with what is expected."""
    with pytest.raises(InternalError, match="expected section/name"):
        store_with(tmp_path).save(1, Snapshot({"w": torch.ones(1)}), DOCUMENTS)

    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool]
)
def test_bytes_come_back(tmp_path, dtype):
    """G1: dtype, shape and bytes of a tensor are the same before saving and after loading, scalars included."""
    tensors = {"model/a": torch.tensor([0, 1, 1]).to(dtype), "model/scalar": torch.tensor(1).to(dtype)}
    saved = store_with(tmp_path).save(3, Snapshot(tensors), DOCUMENTS)

    assert same_tensors(load_checkpoint(saved).tensors, tensors)
    assert inspect_checkpoint(saved.path) == saved
