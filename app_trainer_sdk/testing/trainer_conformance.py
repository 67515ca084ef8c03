"""Owns the conformance kit as a pytest class: one test for each promise, so a broken one has a name.

It needs nothing of pytest but its conventions, and importing it does not import torch.
"""

from __future__ import annotations

import contextlib
import unittest
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.testing.conformance import PROMISES, Conformance, Promise, opened
from app_trainer_sdk.testing.subject import Asked


class TrainerConformance:
    """Subclass it with a name that starts with ``Test``, and say which trainer.

    ::

        class TestMyTrainer(TrainerConformance):
            trainer = "my_package.trainer:MyTrainer"
            hyperparameters = {"max_length": 64}
    """

    trainer: ClassVar[str | type[Trainer]]
    """An installed trainer's name, ``package.module:Class``, or the class."""
    model: ClassVar[str | None] = None
    """A model of its catalog; the first when left out."""
    method: ClassVar[str | None] = None
    """One of its methods; the first when left out."""
    inputs: ClassVar[Mapping[str, str | Path]] = {}
    """Path of each input, by name."""
    hyperparameters: ClassVar[Mapping[str, Any]] = {}
    """Settings that make the job small."""

    _opened: ClassVar[contextlib.ExitStack]
    _conformance: ClassVar[Conformance]

    @classmethod
    def setup_class(cls) -> None:
        """Open the kit once for all promises."""
        asked = Asked(cls.trainer, cls.model, cls.method, cls.inputs, cls.hyperparameters)
        cls._opened = contextlib.ExitStack()
        cls._conformance = cls._opened.enter_context(opened(asked))

    @classmethod
    def teardown_class(cls) -> None:
        """End what still runs and remove what was written."""
        cls._opened.close()


def _test(promise: Promise) -> Callable[[TrainerConformance], None]:
    def test(self: TrainerConformance) -> None:
        __tracebackhide__ = True
        result = self._conformance.result(promise)
        if result.status == "skip":
            raise unittest.SkipTest(result.reason)
        if result.status == "fail":
            raise AssertionError(result.reason)

    test.__doc__ = promise.meaning
    test.__name__ = "test_" + promise.name.replace(" ", "_").replace("-", "_")
    test.__qualname__ = f"{TrainerConformance.__qualname__}.{test.__name__}"
    return test


for _promise in PROMISES:
    _made = _test(_promise)
    setattr(TrainerConformance, _made.__name__, _made)
