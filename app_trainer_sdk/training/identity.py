"""Owns what must be equal for a resume to be exact, and telling the differences before a weight is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from app_trainer_sdk.errors import BadJob, Problem
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
        "method": plan.method, "dataset": fingerprint, "rows": plan.rows, "weights": dict(weights),
        "replicas": plan.replicas, "threads": plan.threads, "device": device.kind, "kernels": device.kernels,
        "torch": torch.__version__, **{f"settings/{name}": value for name, value in knobs.items()},
    }  # fmt: skip


def compare_identity(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Problem]:
    """Differences, each with its field, the saved value and the one of now."""
    fields = [*saved, *(name for name in now if name not in saved)]
    return [
        Problem(name, f"{now.get(name)!r}", f"{saved.get(name)!r}, as in the checkpoint")
        for name in fields
        if saved.get(name) != now.get(name)
    ]


def refuse_differences(saved: Mapping[str, Any], now: Mapping[str, Any], *, where: str) -> None:
    """Raise :class:`BadJob` with every difference, before anything large is loaded."""
    problems = compare_identity(saved, now)
    if problems:
        raise BadJob(
            f"this start differs from {where}, so resuming would not be exact:", problems=problems,
            setting="the job back, or give another --job-dir",
        )  # fmt: skip
