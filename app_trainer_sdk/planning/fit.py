"""Owns the choice of a run's knobs of memory and speed for the card that is there, before anything is fetched.

What fits is asked of the planning process; what does not is refused with what would. Nothing that the job says
is changed, and on a machine without a card nothing is asked. This file must not know how memory is predicted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app_trainer_sdk.choice import KNOBS
from app_trainer_sdk.contract import SupervisedTrainer, Trainer
from app_trainer_sdk.errors import HardwareUnfit, InternalError
from app_trainer_sdk.gpus import Card, find_card
from app_trainer_sdk.job import Job
from app_trainer_sdk.plan_table import ways_that_fit
from app_trainer_sdk.planning.measured import Measured
from app_trainer_sdk.planning.process import Ask, ask
from app_trainer_sdk.preflight.present import present_cards
from app_trainer_sdk.quantities import GIB

PresentCards = Callable[[], Sequence[Card]]
#: The word for planning for no card at all, whatever is there.
NO_CARD = "none"


@dataclass(frozen=True)
class Foresight:
    """What a start may know before anything is fetched: which cards are there, and a pilot somebody names."""

    cards: PresentCards = present_cards
    pilot: Path | None = None


def cards_to_plan_for(word: str) -> PresentCards:
    """Which cards a run is planned for: those that are there, unless somebody names one.

    Args:
        word: empty, a card of the catalog or a memory such as ``24GiB``, or ``none``.

    Raises:
        BadJob: no card is called so.
    """
    if not word:
        return present_cards
    named = () if word == NO_CARD else (find_card(word),)
    return lambda: named


def fit_to_cards(
    job: Job, trainer: type[Trainer], cards: Sequence[Card], *, replicas: int = 1,
    measured: Measured | None = None, ask: Ask = ask,
) -> dict[str, Any]:  # fmt: skip
    """The knobs that a run on ``cards`` takes, and how they were chosen; empty where there is no card.

    Args:
        job: the job.
        trainer: its trainer.
        cards: those of the ranks, in their order, or one for all. The smallest decides for all of them.
        replicas: ranks.
        measured: what a pilot of the job measured.
        ask: asks the planning process.

    Returns:
        ``settings`` (requested, effective, why), ``card``, ``memory``, ``considered``, ``grade``,
        ``update_seconds`` and ``checkpoint_bytes``; or ``not_planned``, the reason.

    Raises:
        HardwareUnfit: nothing that the job allows fits; the message names what does.
        TrainerError: what planning refused.
    """
    known = [card for card in cards[:replicas] if card.memory_bytes]
    if not known:
        return {}
    if not issubclass(trainer, SupervisedTrainer):
        return {"not_planned": "the trainer has a loop of its own, whose memory cannot be predicted"}
    card = min(known, key=lambda each: each.memory_bytes)
    request = {
        "job": job.document(), "replicas": replicas, "cards": [dataclasses.asdict(card)], "here": True,
    }  # fmt: skip
    if measured is not None:
        request["measured"] = dataclasses.asdict(measured)
    try:
        (plan,) = ask(request)["cards"]
    except InternalError as error:  # a loss that cannot be rehearsed can still be trained
        return {"not_planned": str(error)}
    if not plan["fits"]:
        raise _unfit(plan)
    knobs = {name: plan["settings"][name] for name in KNOBS}
    return {
        "settings": knobs, "card": plan["card"], "memory": plan["memory"], "considered": plan["considered"],
        "grade": plan["grade"], "update_seconds": plan["update_seconds"],
        "checkpoint_bytes": plan["prediction"]["checkpoint_bytes"],
    }  # fmt: skip


def room_for_checkpoints(fit: Mapping[str, Any], kept: int) -> int:
    """Bytes that a run's checkpoints will take on the disk: those kept, and one while it is written.

    Args:
        fit: what :func:`fit_to_cards` gave; 0 bytes where nothing was planned.
        kept: the job's ``checkpoints_kept``.
    """
    return int(fit.get("checkpoint_bytes", 0)) * (kept + 1)


def _unfit(plan: Mapping[str, Any]) -> HardwareUnfit:
    memory, knobs = plan["memory"], plan["settings"]
    leanest = ", ".join(f"{name} {str(knobs[name]['effective']).lower()}" for name in KNOBS)
    return HardwareUnfit(
        f"{plan['card']['title']} has {_gib(memory['available_bytes'])}, and the leanest way that the job "
        f"allows ({leanest}) takes {_gib(memory['needed_bytes'])} ({plan['grade']})",
        expected=ways_that_fit(plan),
        setting="the settings or the card (--gpu none starts without planning memory)",
    )  # fmt: skip


def _gib(count: int) -> str:
    return f"{count / GIB:.2f} GiB"
