"""Owns what a resume may change when somebody says so, and what it never may. Torch-free.

A resume that would not be exact is refused; ``run --allow-change FIELD`` goes on all the same and records it.
This file must not know how fields are compared or what a change does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app_trainer_sdk.errors import BadJob, Problem, did_you_mean
from app_trainer_sdk.values import JSON

if TYPE_CHECKING:
    from app_trainer_sdk.contract import Trainer

OPTION = "--allow-change"
SETTINGS = "settings/"
#: The global generators' state; a checkpoint that lacks it, or has it in another form, is a difference too.
RANDOM = "random"
#: Fields of a checkpoint's identity, settings aside, that may change.
FIELDS = (
    "trainer_version", "dataset", "rows", "stream", "weights", "replicas", "threads", "device", "kernels",
    "torch", RANDOM,
)  # fmt: skip
#: What no wish makes possible, and why.
NEVER = {
    "trainer": "the state in a checkpoint is its trainer's own",
    "model": "the weights in a checkpoint are those of its model",
    "method": "another method trains other weights",
    "settings/optimizer": "an optimizer cannot go on from the state of another one",
    "settings/optim_8bit": "8-bit and 32-bit state cannot stand in for each other",
}


@dataclass(frozen=True)
class Difference:
    """One field in which a start differs from the checkpoint it would go on from."""

    field: str
    saved: JSON
    now: JSON

    def record(self, step: int) -> dict[str, JSON]:
        """As plan and result tell it, once it was allowed after update ``step``."""
        return {"field": self.field, "saved": self.saved, "now": self.now, "step": step}


def check_allowed(fields: Sequence[str], trainer: type[Trainer]) -> None:
    """Refuse a name that no checkpoint has and a change that cannot be resumed from.

    Raises:
        BadJob: every such name, with the nearest known ones or the reason.
    """
    settings = (f"{SETTINGS}{name}" for name in trainer.hyperparameters_class.model_fields)
    known = {*FIELDS, *settings} - NEVER.keys()
    problems = []
    for field in fields:
        pointer = f"{OPTION} {field}"
        if field in NEVER:
            problems.append(Problem(pointer, "a change no resume can make", "another --job-dir", NEVER[field]))
        elif field not in known:
            hint = did_you_mean(field, known)
            problems.append(Problem(pointer, "no such field", "one that may change", hint))
    if problems:
        raise BadJob(f"{OPTION} cannot be used:", problems=problems)


def refuse_differences(differences: Sequence[Difference], *, where: str, allowed: Collection[str] = ()) -> None:
    """Refuse what was not allowed, before anything large is loaded.

    Args:
        differences: all of them.
        where: the checkpoint.
        allowed: fields that may differ.

    Raises:
        BadJob: every difference that was not allowed, and whether it can be.
    """
    refused = [each for each in differences if each.field not in allowed or each.field in NEVER]
    if not refused:
        return
    possible = not any(each.field in NEVER for each in refused)
    otherwise = f" ({OPTION} FIELD goes on all the same)" if possible else ""
    raise BadJob(
        f"this start differs from {where}, so resuming would not be exact{otherwise}:",
        problems=[_problem(each) for each in refused], setting="the job back, or give another --job-dir",
    )  # fmt: skip


def change_lines(changed: Sequence[Mapping[str, JSON]]) -> list[str]:
    """What was changed, for people."""
    return [
        f"changed on resume after update {each['step']}: {each['field']} was {each['saved']}, is {each['now']}"
        for each in changed
    ]


def _problem(difference: Difference) -> Problem:
    if difference.field == RANDOM:
        return Problem(RANDOM, str(difference.saved), "the state of every generator, in this version's form")
    expected = f"{difference.saved!r}, as in the checkpoint"
    return Problem(difference.field, f"{difference.now!r}", expected, NEVER.get(difference.field, ""))
