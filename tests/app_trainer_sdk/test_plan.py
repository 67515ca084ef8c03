"""The plan as a value: what a trainer reads of it, what a person reads."""

from __future__ import annotations

import json
from typing import Any

from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.plan import Effective, Plan, plan_lines


def plan(**changes: Any) -> Plan:
    facts: dict[str, Any] = {
        "trainer": "text", "trainer_version": "1", "model": "m", "method": "lora", "updates": 3,
        "examples_per_update": 16, "examples_seen": 48, "rows": 100, "updates_per_epoch": 7, "replicas": 1,
        "threads": 2, "precision": "no", "device": "cpu: a processor", "batch": "8 × 2 × 1 = 16",
        "settings": {"microbatch": Effective("auto", 8, "the trainer's default of 8")},
    }  # fmt: skip
    return Plan(**{**facts, **changes})


def test_it_reads_back_from_its_document():
    """A resume reuses the saved plan: JSON and back is the same plan."""
    made = plan(changed=({"field": "rows", "saved": 1, "now": 2, "step": 3},))

    assert made == Plan.from_document(json.loads(json.dumps(made.document())))


def test_decided_settings_are_what_a_trainer_reads():
    """Every knob of the plan stands in for the one that was asked."""
    assert plan().resolved(Hyperparameters.read({"seed": 7})).microbatch == 8
    assert plan().resolved(Hyperparameters.read({"seed": 7})).seed == 7


def test_a_person_reads_for_which_card_it_was_planned():
    """Or why it was not."""
    memory = {"needed_bytes": 1 << 30, "available_bytes": 3 << 29}
    fit = {"card": {"title": "A card"}, "memory": memory, "grade": "predicted", "considered": [{}, {}]}

    assert "  planned for A card: 1.00 of 1.50 GiB (predicted); 2 ways considered" in plan_lines(plan(fit=fit))
    assert "  memory is not planned: since" in plan_lines(plan(fit={"not_planned": "since"}))


def test_a_person_reads_what_was_asked_what_it_became_and_why():
    """One line for each knob, after the arithmetic."""
    lines = plan_lines(plan())

    assert lines[1] == "  3 updates × 16 = 48 examples seen of 100 rows (7 updates a pass)"
    assert lines[-1].split(maxsplit=3) == ["microbatch", "8", "(asked", "auto) the trainer's default of 8"]
