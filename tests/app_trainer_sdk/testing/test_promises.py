"""Promises of any trainer, each judged by itself."""

from __future__ import annotations

import pytest
import torch

from app_trainer_sdk.testing import Asked, check_trainer, promises
from app_trainer_sdk.testing.subject import Subject
from app_trainer_sdk.testing.verdict import BrokenPromise
from app_trainer_sdk.values import Examination, Snapshot


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))


def test_describe_fails_for_a_module_that_imports_torch(tmp_path, monkeypatch):
    """A top-level import of torch is found in another process, and told with the module."""
    (tmp_path / "heavy.py").write_text("import torch\nfrom app_trainer_sdk.testing.toys import ToyTrainer\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    (result,) = check_trainer(Asked("heavy:ToyTrainer"), only=["describe without torch"])

    assert result.status == "fail"
    assert "describing it imports torch" in result.reason
    assert "move them into the methods" in result.reason


def test_a_class_that_is_none_breaks_the_contract():
    """A name that leads nowhere fails the first promise; all others say that they were not judged."""
    first, *others = check_trainer(Asked("broken_trainers:NoSuchTrainer"))

    assert first.status == "fail"
    assert "NoSuchTrainer" in first.reason
    assert {each.status for each in others} == {"skip"}


def test_promises_that_a_toy_keeps(tmp_path):
    """Each says what it measured, or nothing."""
    toy = Subject(Asked("app_trainer_sdk.testing.toys:ToyTrainer"), tmp_path)

    assert promises.contract(toy) is None
    assert "updates" in promises.plan(toy)
    assert promises.examine(toy) is None or "rows" in promises.examine(toy)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (Snapshot({"model/a": torch.ones(2)}, {"step": 1}), ""),
        (Snapshot({"model/a": torch.zeros(2)}, {"step": 1}), "model/a"),
        (Snapshot({"model/a": torch.ones(2)}, {"step": 2}), "step"),
    ],
)
def test_what_differs_between_two_snapshots_is_named(other, told):
    """Tensors and values."""
    difference = promises._snapshot_difference(Snapshot({"model/a": torch.ones(2)}, {"step": 1}), other)

    assert (told in difference) if told else difference == ""


def test_groups_that_are_not_those_of_the_rows_are_refused():
    """A job with ``batching`` ``by_group`` makes its updates of them."""

    class Grouped:
        def __len__(self):
            return 3

        def groups(self):
            return ["b", "a", "b"]

    promises._refuse_other_groups(Examination(3, group_sizes=(1, 2)), Grouped(), "t")
    with pytest.raises(BrokenPromise, match=r"\[2, 1\]"):
        promises._refuse_other_groups(Examination(3, group_sizes=(2, 1)), Grouped(), "t")
