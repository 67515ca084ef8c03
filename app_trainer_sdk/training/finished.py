"""Owns which checkpoint of a finished training is exported.

It must not know how training is made, nor what is exported.
"""

from __future__ import annotations

from typing import Any

from app_trainer_sdk.checkpoints import STATE, Checkpoint, is_trained, read_document
from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.plan import Plan
from app_trainer_sdk.training.checkpoint import CheckpointStore


def pick_for_export(store: CheckpointStore, plan: Plan) -> tuple[Checkpoint, dict[str, Any]]:
    """The checkpoint that artifacts are made from, and what is known of how training ended.

    Raises:
        InternalError: training is not finished, or the best checkpoint is gone.
    """
    last, _ = store.newest()
    if last is None or not is_trained(last, plan):
        raise InternalError("the last checkpoint is gone", expected=f"one of step {plan.updates}")
    driver = read_document(last, STATE)["driver"]
    wanted, which = last.step, "the last one"
    if plan.settings["export_from"].effective == "best":
        found = driver["best"]["step"] is not None
        wanted = driver["best"]["step"] if found else wanted
        which = "the best one" if found else f"{which}, since no evaluation had a finite value"
    told = {
        "last_step": last.step, "best": driver["best"], "ended_early": driver["ended"] or None,
        "exported_step": wanted, "exported": which,
    }  # fmt: skip
    for checkpoint in store.find():
        if checkpoint.step == wanted and not checkpoint.problem and checkpoint.run == store.run:
            return checkpoint, told
    raise InternalError(f"the best checkpoint, of step {wanted}, is gone", expected="it beside the last one")
