"""The selection sheet: every card, and why one does not fit."""

from __future__ import annotations

import json

import pytest

from app_trainer_sdk.plan_command import main
from app_trainer_sdk.plan_schema import PlanDocument

pytestmark = pytest.mark.usefixtures("plans_here")
TOY = "app_trainer_sdk.testing.toys:ToyTrainer"


def test_the_selection_sheet_has_every_card(job, capsys):
    code = main(["--job", job()])
    lines = capsys.readouterr().out.splitlines()

    assert code == 0
    for name in ("L4", "L40S", "RTX-4090", "A100-80", "H100-80", "H200", "B200", "MI300X"):
        (line,) = (each for each in lines if each.startswith(f"{name} "))
        assert "yes" in line


def test_a_card_without_the_arithmetic_asked_for_is_told_among_the_others(job, capsys):
    """A job that says bf16 still has a sheet; asked about alone, such a card is refused."""
    code = main(["--job", job(mixed_precision="bf16"), "--gpu", "T4", "--gpu", "L4", "--json"])
    document = json.loads(capsys.readouterr().out)
    PlanDocument.model_validate(document)

    assert code == 0
    assert [each["fits"] for each in document["cards"]] == [False, True]
    assert "has no bf16 arithmetic" in document["cards"][0]["refused"]
    assert main(["--job", job(mixed_precision="bf16"), "--gpu", "T4"]) == 78
