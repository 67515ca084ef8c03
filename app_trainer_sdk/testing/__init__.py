"""What authors test with: the conformance kit and small trainers. Nothing in production imports it.

Names are resolved when first asked for, so that importing the package imports neither torch nor the kit.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app_trainer_sdk.testing.conformance import PROMISES, Promise, check_trainer
    from app_trainer_sdk.testing.splits import assert_split_invariant
    from app_trainer_sdk.testing.subject import Asked
    from app_trainer_sdk.testing.trainer_conformance import TrainerConformance
    from app_trainer_sdk.testing.verdict import BrokenPromise, Result

_MODULE_OF = {
    "PROMISES": "conformance", "Promise": "conformance", "check_trainer": "conformance",
    "assert_split_invariant": "splits", "Asked": "subject", "TrainerConformance": "trainer_conformance",
    "BrokenPromise": "verdict", "Result": "verdict",
}  # fmt: skip

__all__ = [
    "PROMISES", "Asked", "BrokenPromise", "Promise", "Result", "TrainerConformance", "assert_split_invariant",
    "check_trainer",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
