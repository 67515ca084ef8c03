"""Owns the question whether a run that is taken up fits the card that is there now, before anything is loaded.

Its plan is never made again, but the card may be a smaller one. What the saved plan says it holds is compared
first, which costs nothing; only what seems too much is asked of the planning process, which has the last word.
This file must not know how memory is predicted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk.changes import OPTION
from app_trainer_sdk.checkpoints import (
    PLAN,
    STATE,
    Checkpoint,
    find_checkpoints,
    inspect_checkpoint,
    is_trained,
    read_document,
)
from app_trainer_sdk.choice import KNOBS, SPLIT
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.errors import HardwareUnfit
from app_trainer_sdk.gpus import Card
from app_trainer_sdk.job import Job
from app_trainer_sdk.plan import Plan
from app_trainer_sdk.planning.fit import fit_to_cards
from app_trainer_sdk.planning.measured import Measured
from app_trainer_sdk.planning.process import Ask, ask

ROWS, STEPS = SPLIT
TOTAL = "global_batch"


def refuse_too_small_cards(
    folder: Path, job: Job, trainer: type[Trainer], cards: Sequence[Card], *, replicas: int = 1,
    changes: bool = False, measured: Measured | None = None, ask: Ask = ask,
) -> None:  # fmt: skip
    """Refuse cards that do not hold the run whose checkpoints lie in ``folder``.

    Args:
        folder: of the checkpoints; the newest whole one is taken up.
        job: the job.
        trainer: its trainer.
        cards: those of the ranks; the smallest decides.
        replicas: ranks.
        changes: whether settings may differ from the checkpoint's, so that its plan does not tell what is held.
        measured: what a pilot of the job measured.
        ask: asks the planning process.

    Raises:
        HardwareUnfit: the run does not fit; the message names what does.
    """
    known = [card for card in cards[:replicas] if card.memory_bytes]
    newest = _newest(folder) if known else None
    if newest is None:
        return
    checkpoint, plan, state = newest
    memory = plan.fit.get("memory")
    card = min(known, key=lambda each: each.memory_bytes)
    if memory is None or is_trained(checkpoint, plan):
        return  # nobody planned its memory, or nothing is left to train
    if not changes and _needed(memory, card) <= card.memory_bytes:
        return
    begun = _as_begun(job, plan, state, replicas)
    try:
        fit_to_cards(begun, trainer, [card], replicas=replicas, measured=measured, ask=ask)
    except HardwareUnfit as error:
        planned = plan.fit["card"]["title"]
        raise HardwareUnfit(
            f"{checkpoint.path.name} is of a run that was planned for {planned}: {error.found}",
            expected=error.expected,
            setting=f"the card, or the settings with {OPTION} (--gpu none asks nothing)",
        ) from None  # fmt: skip


def _newest(folder: Path) -> tuple[Checkpoint, Plan, Mapping[str, Any]] | None:
    """The newest checkpoint that is whole by its sizes (loading verifies contents), its plan and its state."""
    found = (inspect_checkpoint(each, digests=False) for each in find_checkpoints(folder))
    for each in sorted(found, key=lambda each: (each.step, each.number), reverse=True):
        if not each.problem:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # damaged: told by who loads it
                return each, Plan.from_document(read_document(each, PLAN)), read_document(each, STATE)
    return None


def _needed(memory: Mapping[str, int], card: Card) -> int:
    """What the plan's peak takes on another card."""
    peak = memory["peak_bytes"] + memory["exchange_bytes"] + memory["correction_bytes"]
    fixed = memory["rounding_bytes"] + card.library_bytes + card.context_bytes
    return peak + fixed + card.headroom(peak)


def _as_begun(job: Job, plan: Plan, state: Mapping[str, Any], replicas: int) -> Job:
    """The job with the knobs that the run has; what the job says now stays."""
    saved = {name: knob.effective for name, knob in plan.settings.items() if name in (*KNOBS, TOTAL)}
    said = {name: value for name, value in job.hyperparameters.items() if value != "auto"}
    knobs: dict[str, Any] = {**saved, **said}
    halved = state.get("counters", {}).get("microbatch") or knobs[ROWS]  # memory ran out before
    rows = min(knobs[ROWS], halved)
    knobs |= {ROWS: "auto" if knobs[TOTAL] % (rows * replicas) else rows, STEPS: "auto"}
    return job.model_copy(update={"hyperparameters": {**job.hyperparameters, **knobs}})
