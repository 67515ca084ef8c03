"""app_trainer_sdk: the library that GPU trainer containers share.

Owns the public names, resolved when first asked for, so that importing the package costs nothing and never
imports torch. What is not listed here is private to the SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from app_trainer_sdk.catalog import Floor, ModelRow, Requirements, WeightSource
    from app_trainer_sdk.contract import SupervisedTrainer, Trainer
    from app_trainer_sdk.errors import BadData, BadJob, InputMissing, TrainerError
    from app_trainer_sdk.fetch_time import fetching
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.hyperparameters import Hyperparameters, setting
    from app_trainer_sdk.job import Job, load_job
    from app_trainer_sdk.streams import IterableStream, StatefulStream
    from app_trainer_sdk.values import (
        JSON,
        Artifact,
        Batch,
        Dataset,
        Examination,
        Input,
        LossTerms,
        Modules,
        Phase,
        PhaseShapes,
        Snapshot,
        StepInfo,
        Stream,
    )

_HOMES = {
    "catalog": ("Floor", "ModelRow", "Requirements", "WeightSource"),
    "contract": ("SupervisedTrainer", "Trainer"),
    "errors": ("BadData", "BadJob", "InputMissing", "TrainerError"),
    "fetch_time": ("fetching",),
    "handle": ("Run",),
    "hyperparameters": ("Hyperparameters", "setting"),
    "job": ("Job", "load_job"),
    "streams": ("IterableStream", "StatefulStream"),
    "values": (
        "JSON", "Artifact", "Batch", "Dataset", "Examination", "Input", "LossTerms", "Modules", "Phase",
        "PhaseShapes", "Snapshot", "StepInfo", "Stream",
    ),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - one list, kept in _HOMES
    "__version__", "Floor", "ModelRow", "Requirements", "WeightSource", "SupervisedTrainer", "Trainer",
    "BadData", "BadJob", "InputMissing", "TrainerError", "Run", "Hyperparameters", "setting", "Job",
    "load_job", "JSON", "Artifact", "Batch", "Dataset", "Examination", "Input", "LossTerms", "Modules",
    "Phase", "PhaseShapes", "Snapshot", "StepInfo", "Stream", "IterableStream", "StatefulStream",
    "fetching",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
