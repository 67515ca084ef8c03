"""Knobs for the card that is there: what fits is taken, what does not is refused with what would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from stand_in import JOB, Planning

from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.errors import BadJob, HardwareUnfit, InternalError
from app_trainer_sdk.gpus import Card, find_card
from app_trainer_sdk.planning.fit import cards_to_plan_for, fit_to_cards, room_for_checkpoints
from app_trainer_sdk.preflight.present import present_cards
from app_trainer_sdk.quantities import GIB
from app_trainer_sdk.testing.toys import ToyTrainer

L4, H200 = find_card("L4"), find_card("H200")
KNOBS = {
    "microbatch": 4, "gradient_accumulation_steps": 2, "gradient_checkpointing": True, "optim_8bit": False,
    "mixed_precision": "no",
}  # fmt: skip
CHOSEN = {**KNOBS, "torch_compile": False}


def test_without_a_card_nothing_is_asked():
    """A machine with a CPU alone trains as it always did; a card whose memory nobody tells is none."""
    planning = Planning(CHOSEN)
    silent = Card("x", "X", 0, "", True, 0, 0)

    assert fit_to_cards(JOB, ToyTrainer, [], ask=planning) == {}
    assert fit_to_cards(JOB, ToyTrainer, [silent], ask=planning) == {}
    assert planning.requests == []


def test_the_knobs_are_kept_with_how_they_were_chosen():
    """What the plan records: each knob, the card, its memory, what was considered, how it is known."""
    planning = Planning(CHOSEN)
    fit = fit_to_cards(JOB, ToyTrainer, [L4], ask=planning)

    assert {name: knob["effective"] for name, knob in fit["settings"].items()} == KNOBS
    assert fit["card"]["name"] == "L4"
    assert fit["considered"] == [{"verdict": "fits"}]
    assert (fit["grade"], fit["update_seconds"]) == ("predicted, CPU kernels", None)
    assert planning.requests[0]["here"] is True


def test_the_disk_needs_room_for_the_checkpoints_kept_and_one_more():
    """A13 7: what is written while another is still there; nothing is known without a plan."""
    fit = fit_to_cards(JOB, ToyTrainer, [L4], ask=Planning(CHOSEN))

    assert room_for_checkpoints(fit, 2) == 9 * GIB
    assert room_for_checkpoints({}, 2) == 0


def test_the_smallest_card_of_the_ranks_decides():
    """All ranks make the same microbatch; a card that no rank gets does not count."""
    planning = Planning(CHOSEN)
    fit_to_cards(JOB, ToyTrainer, [H200, L4, find_card("T4")], replicas=2, ask=planning)

    assert [card["name"] for card in planning.requests[0]["cards"]] == ["L4"]
    assert planning.requests[0]["replicas"] == 2


def test_what_does_not_fit_is_refused_with_what_would():
    """E3: 78, with the leanest way that the job allows and every way out."""
    with pytest.raises(HardwareUnfit) as told:
        fit_to_cards(JOB, ToyTrainer, [L4], ask=Planning(CHOSEN, fits=False))

    assert told.value.code == 78
    assert "NVIDIA L4 24 GB has 21.90 GiB" in str(told.value)
    assert "microbatch 4, gradient_accumulation_steps 2, gradient_checkpointing true" in str(told.value)
    assert "microbatch 1 or a H200 or its state shared by 2 such cards" in str(told.value)


def test_what_cannot_be_planned_is_trained_and_told():
    """A loop of its own, or a loss that cannot be rehearsed without data: the plan says so."""

    def fails(request: Mapping[str, Any]) -> dict[str, Any]:
        raise InternalError("text cannot be rehearsed without data")

    def refuses(request: Mapping[str, Any]) -> dict[str, Any]:
        raise BadJob("the batch does not multiply out")

    assert "loop of its own" in fit_to_cards(JOB, Trainer, [L4], ask=fails)["not_planned"]
    assert "cannot be rehearsed" in fit_to_cards(JOB, ToyTrainer, [L4], ask=fails)["not_planned"]
    with pytest.raises(BadJob):
        fit_to_cards(JOB, ToyTrainer, [L4], ask=refuses)


def test_a_person_may_say_which_card():
    """A name, a memory, or none at all; nothing said means the cards that are there."""
    assert [card.name for card in cards_to_plan_for("l4")()] == ["L4"]
    assert [card.memory_bytes for card in cards_to_plan_for("24GiB")()] == [24 * GIB]
    assert list(cards_to_plan_for("none")()) == []
    assert cards_to_plan_for("") is present_cards
    with pytest.raises(BadJob, match="--gpu"):
        cards_to_plan_for("H3000")
