"""Owns the plan: every derived number of a run with its reason, as a value, a document and lines for people.

``planning/resolve.py`` decides the numbers, once; a saved plan is reused on resume and never resolved again.
This file must not know how a number is decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from app_trainer_sdk.changes import change_lines
from app_trainer_sdk.data_facts import STREAMS
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.quantities import GIB
from app_trainer_sdk.values import JSON

PLAN_SCHEMA = "app.trainer.plan/v1"


@dataclass(frozen=True)
class DeviceFacts:
    """What a device says of itself.

    Attributes:
        kind: ``cpu`` or ``cuda`` (AMD cards answer to ``cuda`` in torch).
        name: the card or processor.
        bf16: whether bf16 arithmetic is done in hardware.
        cores: processors that this machine's ranks may use together, and ``cores_why`` that many.
        memory_bytes: the card's memory, or 0 on the CPU.
        kernels: the instruction set torch's CPU kernels use.
        shared_memory_bytes: free for what processes share.
        host_memory_bytes: of the host's memory, what this machine's ranks may use; 0 when unknown.
        eight_bit_problem: why a step of 8-bit AdamW does not work here; empty when it does or nobody tried.
    """

    kind: str
    name: str
    bf16: bool
    cores: int
    memory_bytes: int = 0
    kernels: str = ""
    eight_bit_problem: str = ""
    cores_why: str = ""
    shared_memory_bytes: int = 0
    host_memory_bytes: int = 0


@dataclass(frozen=True)
class Effective:
    """One knob: what was asked, what it became, why."""

    requested: JSON
    effective: JSON
    why: str


@dataclass(frozen=True)
class Plan:
    """Every number of a run.

    ``settings`` holds each knob, ``changed`` what resumes were allowed to change (field, saved, now, step),
    ``stream`` how the training data resumes when it is a stream, ``fit`` for which card memory was planned and
    what was considered (:func:`~app_trainer_sdk.planning.fit.fit_to_cards`), ``reading`` what reading was
    measured to take; the rest is arithmetic people ask for.
    """

    trainer: str
    trainer_version: str
    model: str
    method: str
    updates: int
    examples_per_update: int
    examples_seen: int
    rows: int | None
    updates_per_epoch: int | None
    replicas: int
    threads: int
    precision: str
    device: str
    batch: str
    settings: Mapping[str, Effective] = field(default_factory=dict)
    changed: Sequence[Mapping[str, JSON]] = ()
    stream: str = ""
    threads_why: str = ""
    fit: Mapping[str, Any] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """The plan as JSON."""
        knobs = {
            name: {"requested": each.requested, "effective": each.effective, "why": each.why}
            for name, each in self.settings.items()
        }
        facts = {name: value for name, value in vars(self).items() if name != "settings"}
        return {"schema": PLAN_SCHEMA, **facts, "settings": knobs}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The plan a document holds."""
        facts = {name: value for name, value in document.items() if name not in ("schema", "settings")}
        knobs = {name: Effective(**each) for name, each in document["settings"].items()}
        changed = tuple(facts.pop("changed", ()))
        return cls(**facts, settings=knobs, changed=changed)

    def resolved(self, settings: Hyperparameters) -> Hyperparameters:
        """The settings with every ``"auto"`` decided."""
        return settings.model_copy(update={name: each.effective for name, each in self.settings.items()})


def plan_lines(plan: Plan) -> list[str]:
    """The plan as a person reads it."""
    rows = "" if plan.rows is None else f" of {plan.rows:,} rows ({plan.updates_per_epoch:,} updates a pass)"
    product = plan.updates * plan.examples_per_update
    uneven = "" if product == plan.examples_seen else f"{product:,}, and with short or merged windows "
    seen = f"{plan.updates:,} updates × {plan.examples_per_update:,} = {uneven}{plan.examples_seen:,}"
    lines = [
        f"plan: {plan.trainer} {plan.trainer_version}, {plan.model}, {plan.method}, on {plan.device}",
        f"  {seen} examples seen{rows}",
        f"  microbatch × accumulation × replicas: {plan.batch}",
        f"  threads of a rank: {plan.threads}" + (f" ({plan.threads_why})" if plan.threads_why else ""),
    ]
    if plan.stream:
        lines.append(f"  training data: a stream, resumed {plan.stream}: {STREAMS[plan.stream]}")
    lines += [f"  {line}" for line in _fit_lines(plan.fit)]
    for name, knob in plan.settings.items():
        asked = "" if knob.requested == knob.effective else f" (asked {knob.requested})"
        lines.append(f"  {name:<28} {knob.effective!s:<14}{asked} {knob.why}".rstrip())
    return lines + [f"  {line}" for line in change_lines(plan.changed)]


def _fit_lines(fit: Mapping[str, Any]) -> list[str]:
    if "not_planned" in fit:
        return [f"memory is not planned: {fit['not_planned']}"]
    if not fit:
        return []
    needed, available = (f"{fit['memory'][name] / GIB:.2f}" for name in ("needed_bytes", "available_bytes"))
    ways = len(fit["considered"])
    return [
        f"planned for {fit['card']['title']}: {needed} of {available} GiB ({fit['grade']}); "
        f"{ways} {'way' if ways == 1 else 'ways'} considered"
    ]


if __name__ == "__main__":  # the command by the module's own name, as every other
    from app_trainer_sdk.plan_command import main

    raise SystemExit(main())
