"""Owns what must be equal for a resume to be exact, and where two starts differ in it.

``changes.py`` owns which differences may be allowed. This file must not know what becomes of a resume that
differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from app_trainer_sdk.changes import SETTINGS, Difference
from app_trainer_sdk.plan import DeviceFacts, Plan

#: Knobs that change when something is looked at or read, never what is computed.
OPERATIONAL = frozenset(
    {"evaluate_every", "checkpoint_every", "checkpoints_kept", "dataloader_workers", "memory_release",
     "nonfinite_limit", "epochs", "best_metric", "best_is", "export_from"}
)  # fmt: skip


def describe_identity(
    plan: Plan, *, fingerprint: str, weights: Mapping[str, str], device: DeviceFacts
) -> dict[str, Any]:
    """The fields two starts of a job must share to make bit-identical updates."""
    knobs = {name: knob.effective for name, knob in plan.settings.items() if name not in OPERATIONAL}
    return {
        "trainer": plan.trainer, "trainer_version": plan.trainer_version, "model": plan.model,
        "method": plan.method, "dataset": fingerprint, "rows": plan.rows, "stream": plan.stream,
        "weights": dict(weights), "replicas": plan.replicas, "threads": plan.threads, "device": device.kind,
        "kernels": device.kernels, "torch": torch.__version__,
        **{SETTINGS + name: value for name, value in knobs.items()},
    }  # fmt: skip


def compare_identity(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Differences, each with its field, the saved value and the one of now."""
    fields = [*saved, *(name for name in now if name not in saved)]
    return [
        Difference(name, saved.get(name), now.get(name)) for name in fields if saved.get(name) != now.get(name)
    ]
