"""A disk that fails at any moment of a save costs that save and nothing else, and says so."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch_helpers import drive, in_new_process, make_trainer, open_training, same_tensors, train

from app_trainer_sdk.errors import BadJob, DiskFull, InternalError
from app_trainer_sdk.files import RealDisk
from app_trainer_sdk.training.checkpoint import CheckpointStore, load_checkpoint
from app_trainer_sdk.values import Snapshot

DOCUMENTS = {"plan.json": {"updates": 40}, "identity.json": {"seed": 1}}


class SickDisk:
    """A disk on which one operation goes wrong.

    Args:
        kind: ``make``, ``write``, ``sync`` or ``rename``.
        at: which one of that kind, from 1; 0 for none.
        fault: an error number, ``lost`` (it says it was done, and was not), ``cut`` (half of the file, in
            silence) or ``empty`` (no byte of it, in silence).
    """

    def __init__(self, kind="", at=0, fault=errno.ENOSPC):
        self.kind, self.at, self.fault = kind, at, fault
        self.counts = Counter()
        self.healthy = RealDisk()

    def make(self, folder):
        if self.works("make"):
            self.healthy.make(folder)

    def write(self, path, put):
        works = self.works("write", lambda: self.halve(path, put))
        if works or self.fault in ("cut", "empty"):
            self.healthy.write(path, put)
        if not works:
            os.truncate(path, path.stat().st_size // 2 if self.fault == "cut" else 0)

    def sync(self, path):
        if self.works("sync"):
            self.healthy.sync(path)

    def rename(self, source, target):
        if self.works("rename"):
            self.healthy.rename(source, target)

    def works(self, kind, before=lambda: None):
        self.counts[kind] += 1
        if kind != self.kind or self.counts[kind] != self.at:
            return True
        if isinstance(self.fault, int):
            before()
            raise OSError(self.fault, os.strerror(self.fault))
        return False

    def halve(self, path, put):
        """What a disk that fills up keeps of a file."""
        self.healthy.write(path, put)
        os.truncate(path, path.stat().st_size // 2)


def snapshot(value):
    tensors = {"model/w": torch.full((64,), float(value)), "optimizer/w/exp_avg": torch.zeros(64)}
    return Snapshot(tensors, {"counters": {"updates": 1}})


def saved(directory, *steps, disk=None, run="mine"):
    store = CheckpointStore(directory, run, disk=disk)
    for step in steps:
        store.save(step, snapshot(step), DOCUMENTS)
    return store


def operations():
    """How many operations of each kind one save takes, as (kind, number) pairs."""
    import tempfile

    disk = SickDisk()
    with tempfile.TemporaryDirectory() as folder:
        saved(Path(folder), 1, disk=disk)
    return [(kind, number) for kind, count in disk.counts.items() for number in range(1, count + 1)]


OPERATIONS = operations()
ERRORS = [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, InternalError),
          (errno.EROFS, InternalError)]  # fmt: skip


def test_a_save_is_these_operations():
    """Two files of tensors, three documents and the manifest are written and synced, then both folders."""
    assert Counter(kind for kind, _ in OPERATIONS) == {"make": 1, "write": 6, "sync": 8, "rename": 1}


@pytest.mark.parametrize(("number", "kind"), ERRORS)
@pytest.mark.parametrize("place", OPERATIONS, ids=lambda place: f"{place[0]}-{place[1]}")
def test_an_error_at_each_operation(tmp_path, place, number, kind):
    """C1, C3: no space, a failing or a read-only disk at the k-th write, sync, rename or folder: the error says
    what was being done, step 20 is whole, nothing half-written is found, and the next save works.
    """  # fmt: skip
    saved(tmp_path, 10, 20)
    with pytest.raises(kind, match="saving step 30") as told:
        saved(tmp_path, 30, disk=SickDisk(*place, number))
    store = CheckpointStore(tmp_path, "mine")
    newest, skipped = store.newest()
    in_place = place == OPERATIONS_AFTER_RENAME

    assert int(told.value.code) == (73 if kind is DiskFull else 70)
    assert skipped == []
    assert newest.step == (30 if in_place else 20)
    assert load_checkpoint(newest).tensors["model/w"][0] == newest.step
    assert {each.name for each in tmp_path.iterdir()} == {
        f"step-000000{step}" for step in (10, 20, *([30] if in_place else []))
    }
    saved(tmp_path, 40)
    assert CheckpointStore(tmp_path, "mine").newest()[0].step == 40


#: Once the folder stands in its place it is whole; that its name is durable is all that may fail then.
OPERATIONS_AFTER_RENAME = ("sync", 8)


@pytest.mark.parametrize("fault", ["cut", "empty"])
@pytest.mark.parametrize("place", [each for each in OPERATIONS if each[0] == "write"])
def test_a_write_that_lies(tmp_path, place, fault):
    """C1: a file cut short in silence is found before the checkpoint gets its name."""
    saved(tmp_path, 20)
    with pytest.raises(InternalError, match=r"saving step 30 .* failed|does not read back"):
        saved(tmp_path, 30, disk=SickDisk(*place, fault))

    assert [each.name for each in tmp_path.iterdir()] == ["step-00000020"]


def test_a_rename_that_is_lost(tmp_path):
    """C1: reported done and not done, the save fails, the checkpoint before is whole, nothing stays beside."""
    saved(tmp_path, 20)
    with pytest.raises(InternalError, match="step-00000030 does not read back: it has no manifest"):
        saved(tmp_path, 30, disk=SickDisk("rename", 1, "lost"))

    assert [each.name for each in tmp_path.iterdir()] == ["step-00000020"]


class Crashing(SickDisk):
    """A disk whose machine goes away around the rename."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def rename(self, source, target):
        if self.after:
            source.rename(target)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("after", [False, True])
def test_a_crash_around_the_rename(tmp_path, after):
    """C1: just before the rename nothing is lost but the save; just after it, the new one is there."""
    saved(tmp_path, 20)
    status = in_new_process(_crash, str(tmp_path), after)
    newest, skipped = CheckpointStore(tmp_path, "mine").newest()
    beside = [each.name for each in tmp_path.iterdir() if each.name.startswith(".")]
    saved(tmp_path, 40)

    assert status == signal.SIGKILL
    assert (newest.step, skipped, len(beside)) == (30 if after else 20, [], 0 if after else 1)
    assert not [each for each in tmp_path.iterdir() if each.name.startswith(".")]


def _crash(directory, after):
    pid = os.fork()
    if pid == 0:
        saved(Path(directory), 30, disk=Crashing(after))
    return os.waitpid(pid, 0)[1]


@pytest.mark.parametrize("fault", [errno.EIO, errno.EROFS, "lost"])
def test_an_old_one_that_cannot_be_removed(tmp_path, fault):
    """C3: retention that fails costs no checkpoint, and is told unless nobody could know."""
    store = saved(tmp_path, 10, 20, 30)
    sick = CheckpointStore(tmp_path, "mine", disk=SickDisk("rename", 1, fault))
    if fault != "lost":
        with pytest.raises(InternalError, match="removing old checkpoints"):
            sick.retain(1)
    else:
        sick.retain(1)

    assert store.newest()[0].step == 30
    assert not CheckpointStore(tmp_path, "mine").newest()[0].problem


@pytest.mark.parametrize("order", ["equal", "reversed"])
def test_newest_is_never_by_the_clock(tmp_path, order):
    """C2: equal and reversed times of folders and files change nothing about which one is the newest."""
    saved(tmp_path, 100, 900, 1000)
    for at, folder in enumerate(sorted(tmp_path.iterdir())):
        when = 1_000_000 - (at * 1000 if order == "reversed" else 0)
        for path in (*folder.iterdir(), folder):
            os.utime(path, (when, when))

    assert CheckpointStore(tmp_path, "mine").newest()[0].step == 1000


def test_a_folder_full_of_another_runs_checkpoints(tmp_path):
    """C2: newer, older and damaged ones of another run: skipped with their reason, kept, and never resumed."""
    saved(tmp_path, 10, 20, 40, run="other")
    saved(tmp_path, 20)
    (tmp_path / "step-00000040" / "state.json").write_bytes(b"")
    store = saved(tmp_path, 30)
    store.retain(1)
    newest, skipped = CheckpointStore(tmp_path, "mine").newest()
    nothing, others = CheckpointStore(tmp_path, "third").newest()

    assert (newest.step, newest.run) == (30, "mine")
    assert [(each.step, each.run) for each in skipped] == [(40, "other")]
    assert (nothing, len(others)) == (None, 4)
    assert {each.name for each in tmp_path.iterdir()} == {f"step-000000{step}" for step in (10, 20, 30, 40)}


class TestFolder:
    """Before training: whether a checkpoint can be begun at all."""

    @pytest.mark.parametrize(
        ("fault", "kind", "code"),
        [
            (errno.EROFS, BadJob, 64), (errno.EACCES, BadJob, 64), (errno.EPERM, BadJob, 64),
            (errno.ENOSPC, DiskFull, 73), (errno.EIO, InternalError, 70),
        ],
    )  # fmt: skip
    def test_it_cannot_be_written(self, tmp_path, fault, kind, code):
        """A read-only folder is the caller's to change, a full or failing disk is not."""
        store = CheckpointStore(tmp_path / "checkpoints", "mine", disk=SickDisk("make", 1, fault))
        with pytest.raises(kind, match=f"{os.strerror(fault)}|no space left") as told:
            store.prepare()

        assert int(told.value.code) == code
        assert (code == 64) == ("change --job-dir" in str(told.value))

    def test_a_file_stands_in_its_place(self, tmp_path):
        """The same from the disk there is."""
        (tmp_path / "checkpoints").touch()
        with pytest.raises(BadJob, match=r"no checkpoint can be written in .*change --job-dir"):
            CheckpointStore(tmp_path / "checkpoints", "mine").prepare()

    def test_it_can(self, tmp_path):
        """Nothing stays behind."""
        CheckpointStore(tmp_path / "checkpoints", "mine").prepare()

        assert [*(tmp_path / "checkpoints").iterdir()] == []


class TestRun:
    """A run whose disk fails while it trains."""

    JOB: ClassVar = {
        "updates": 8,
        "global_batch": 2,
        "checkpoint_every": 2,
        "checkpoints_kept": 1,
        "evaluate_every": 0,
    }

    @staticmethod
    def trainer():
        def loss(modules, values, random):
            for thread in threading.enumerate():  # so that it is known which update comes after the save
                if thread.name == "checkpoint-saver":
                    thread.join()
            return (modules.root(torch.tensor(values).unsqueeze(-1)) - 1.0).pow(2).sum()

        return make_trainer(lambda run: nn.Linear(1, 1), loss, [1.0] * 16)

    @pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, InternalError)])
    def test_it_is_told_at_the_next_update(self, tmp_path, number, kind):
        """C3: the save after update 4 fails; the run ends at update 5 with the disk's error, step 2 is kept,
        and with room on the disk the job goes on to the same end.
        """  # fmt: skip
        whole = train(self.trainer(), tmp_path / "whole", **self.JOB)
        sick = open_training(self.trainer(), tmp_path / "sick", **self.JOB)
        sick.store = CheckpointStore(sick.layout.checkpoints, "test-job", disk=SickDisk("write", 9, number))
        with pytest.raises(kind, match="saving step 4"):
            drive(sick)
        made = [line["step"] for line in sick.metrics()]
        kept = [each.step for each in CheckpointStore(sick.layout.checkpoints, "test-job").find()]
        resumed = train(self.trainer(), tmp_path / "sick", **self.JOB)

        assert (made, kept) == ([1, 2, 3, 4, 5], [2])
        assert resumed.metrics() == whole.metrics()
        assert same_tensors(resumed.snapshot().section("model"), whole.snapshot().section("model"))

    def test_the_last_save_fails(self, tmp_path):
        """C3: after the last update there is no next one: the run still ends with the disk's error."""
        sick = open_training(self.trainer(), tmp_path, **{**self.JOB, "updates": 2})
        sick.store = CheckpointStore(sick.layout.checkpoints, "test-job", disk=SickDisk("sync", 3))

        with pytest.raises(DiskFull, match="saving step 2"):
            drive(sick)


def test_any_other_error_leaves_nothing_behind(tmp_path):
    """C3: whatever interrupts a save, what it had written is removed and the error stays what it was."""
    saved(tmp_path, 1)

    class Interrupted(SickDisk):
        def sync(self, path):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path, 2, disk=Interrupted())

    assert [each.name for each in tmp_path.iterdir()] == ["step-00000001"]
