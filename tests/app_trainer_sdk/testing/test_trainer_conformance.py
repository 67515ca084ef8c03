"""The kit as a class for pytest."""

from __future__ import annotations

import subprocess
import sys
import unittest

import pytest

from app_trainer_sdk.testing import TrainerConformance
from app_trainer_sdk.testing.conformance import PROMISES


def test_the_pytest_class_has_a_named_test_for_each_promise_and_needs_no_torch():
    """Importing what a test file imports stays light."""
    program = (
        "import sys; from app_trainer_sdk.testing import TrainerConformance as T;"
        "print(sum(n.startswith('test_') for n in dir(T)), 'torch' in sys.modules, 'pytest' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split() == [str(len(PROMISES)), "False", "False"]


class Toy(TrainerConformance):
    """As an author writes it, under a name that pytest does not look for."""

    trainer = "app_trainer_sdk.testing.toys:ToyTrainer"


class Nobody(TrainerConformance):
    trainer = "app_trainer_sdk.testing.toys:NoSuchTrainer"


def test_a_promise_passes_fails_or_is_skipped_by_its_own_name(tmp_path, monkeypatch):
    """With the reason; what one opened is closed after the last."""
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path))
    for kind in (Toy, Nobody):
        kind.setup_class()
    try:
        Toy().test_contract()
        with pytest.raises(AssertionError, match="NoSuchTrainer"):
            Nobody().test_contract()
        with pytest.raises(unittest.SkipTest, match="'contract' does not hold"):
            Nobody().test_plan_from_defaults()
    finally:
        for kind in (Toy, Nobody):
            kind.teardown_class()
