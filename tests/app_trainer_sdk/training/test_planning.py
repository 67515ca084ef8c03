"""The program that answers whether a job fits, and tells floors."""

from __future__ import annotations

import dataclasses

from app_trainer_sdk.gpus import Card, find_card
from app_trainer_sdk.testing.toys import ToyTrainer
from app_trainer_sdk.training.planning import answer, model_floors

TOY = {"trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp"}


def test_a_trainer_with_a_loop_of_its_own_is_refused():
    job = {"trainer": "small_models:Wanderer", "model": "m", "inputs": {"dataset": {"url": "/x"}}}

    found = answer({"job": job, "replicas": 1, "cards": []})

    assert found["error"]["code"] == 64
    assert "loop of its own" in found["error"]["message"]


def test_all_is_imported_before_anything_is_rehearsed():
    """What the imports made is set aside then: it lives as long as the process."""
    settled = []
    card = dataclasses.asdict(find_card("L4"))
    found = answer({"job": TOY, "replicas": 1, "cards": [card]}, settled=lambda: settled.append(True))

    assert settled == [True]
    assert [each["card"] for each in found["cards"]] == [card]
    assert found["seconds"] > 0


def test_of_several_cards_one_without_the_arithmetic_is_told_among_the_others():
    """Alone it is refused."""
    job = {**TOY, "hyperparameters": {"mixed_precision": "bf16"}}
    old, new = (dataclasses.asdict(find_card(name)) for name in ("T4", "L4"))
    both = answer({"job": job, "replicas": 1, "cards": [old, new]})
    alone = answer({"job": job, "replicas": 1, "cards": [old]})

    assert [each["fits"] for each in both["cards"]] == [False, True]
    assert "bf16" in both["cards"][0]["refused"]
    assert alone["error"]["code"] == 78


def test_what_fits_a_card_on_which_the_job_did_not():
    """The same answer as for a plan, with what to change."""
    card = Card("small", "A small card", 1 << 30, "9.0", True, 0, 0)
    found = answer({"job": TOY, "replicas": 1, "cards": [dataclasses.asdict(card)], "nearest": True})

    assert found["available_bytes"] == 1 << 30
    assert found.keys() == {"settings", "needed_bytes", "available_bytes", "card"}


def test_the_floors_of_a_model():
    """The leanest way of each method, and of an answer without training, which takes less."""
    floors = model_floors(ToyTrainer, "toy-mlp")

    assert set(floors) == {*ToyTrainer.methods, "inference"}
    assert floors["inference"]["evidence"]["predicted_bytes"] > 0
    assert model_floors(ToyTrainer, "toy-mlp", ["full"])["full"] == floors["full"]
