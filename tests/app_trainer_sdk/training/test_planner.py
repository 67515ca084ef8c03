"""Plans of real, small models on cards of any size."""

from __future__ import annotations

import dataclasses
import sys
import types

import hypothesis
import pytest
from hypothesis import strategies
from torch import nn
from torch_helpers import make_trainer, squares

from app_trainer_sdk.choice import Candidate
from app_trainer_sdk.gpus import Card, find_card
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.job import Job
from app_trainer_sdk.quantities import GIB
from app_trainer_sdk.training.planning import answer
from app_trainer_sdk.values import Modules

MIB = 1 << 20


def card_of(memory_bytes):
    """A card without fixed costs, so that its memory is a model's."""
    return Card("small", "A small card", memory_bytes, "9.0", True, 0, 0)


@pytest.fixture
def plan():
    """Plan a stack of linear layers, without any part of the machine."""
    module = types.ModuleType("planned_trainer")
    sys.modules[module.__name__] = module

    def make(width, depth, cards, replicas=1, here=False, measured=None, **hyperparameters):
        def build(run):
            layers = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth)]
            return Modules(nn.Sequential(*layers), blocks=layers)

        module.Planned = make_trainer(build, squares, [[0.0] * width])
        job = Job.model_validate(
            {"trainer": "planned_trainer:Planned", "model": "m", "inputs": {"dataset": {"url": "/nowhere"}},
             "hyperparameters": hyperparameters}
        )  # fmt: skip
        request_ = {
            "job": job.document(),
            "replicas": replicas,
            "here": here,
            "measured": measured,
            "cards": [dataclasses.asdict(each) for each in cards],
        }
        return answer(request_)

    yield make
    del sys.modules[module.__name__]


def test_a_plan_tells_what_is_held_and_what_is_declared(plan):
    """Terms stand side by side and add up; the prediction is never mixed with context or headroom."""
    found = plan(64, 3, [find_card("L4")], global_batch=16)
    (on_card,) = found["cards"]
    memory = on_card["memory"]
    parts = ("peak", "rounding", "exchange", "library", "correction", "context", "headroom")

    assert on_card["fits"]
    assert on_card["chosen"] == Candidate(16, 1, False, False).knobs()
    assert memory["needed_bytes"] == sum(memory[f"{part}_bytes"] for part in parts)
    assert memory["left_bytes"] == memory["available_bytes"] - memory["needed_bytes"]
    assert memory["peak_bytes"] == sum(on_card["prediction"]["by_owner"].values())
    assert found["parameters"] == 3 * 65 * 64
    assert on_card["settings"]["mixed_precision"]["effective"] == "bf16"


def test_several_ranks_keep_their_gradients_twice(plan):
    """DDP sends them from buckets; a rank alone has none."""
    (alone,) = plan(64, 3, [find_card("L4")], global_batch=16)["cards"]
    (shared,) = plan(64, 3, [find_card("L4")], replicas=2, global_batch=16)["cards"]

    assert alone["memory"]["exchange_bytes"] == 0
    assert shared["memory"]["exchange_bytes"] == 4 * 3 * 65 * 64
    assert shared["chosen"]["microbatch"] == 8


def test_precision_follows_the_card(plan):
    found = plan(16, 1, [find_card("T4"), find_card("H200")], global_batch=2)

    assert [each["precision"] for each in found["cards"]] == ["fp16", "bf16"]


def test_a_card_too_small_is_refused_with_what_would_fit(plan):
    """Explicit settings stand in the way: the answer names them, a card, and how many would have to share."""
    asked = {"global_batch": 4096, "microbatch": 4096, "gradient_checkpointing": False}
    asked["optim_8bit"] = False  # which would just fit
    (on_card,) = plan(256, 6, [card_of(280 * MIB)], **asked)["cards"]

    assert not on_card["fits"]
    assert on_card["chosen"] is None
    assert on_card["nearest"] == {"settings": {"microbatch": 64}, "card": "T4"}
    (on_card,) = plan(64, 2, [card_of(1 * MIB)], **asked)["cards"]

    assert on_card["nearest"]["settings"] is None
    assert on_card["sharding"]["cards"] is None  # the headroom alone is more than the card has


def test_state_too_large_for_one_card_is_counted_in_cards(plan):
    """Weights, gradients and moments of 200 million numbers are 3 GiB."""
    (on_card,) = plan(10_000, 2, [card_of(2 * GIB)], optim_8bit=False)["cards"]

    assert not on_card["fits"]
    assert on_card["sharding"]["state_bytes"] == pytest.approx(16 * 2 * 10_000**2, rel=0.01)
    assert on_card["sharding"]["cards"] in (2, 3)


def test_state_that_cannot_be_shrunk_here_is_not_planned_with(plan, monkeypatch):
    """On the machine itself 8-bit state is tried before it is chosen; elsewhere nobody knows."""
    monkeypatch.setattr("app_trainer_sdk.training.optim.eight_bit_problem_apart", lambda device: "no kernels")
    asked = {"global_batch": 1, "gradient_checkpointing": False}
    card = card_of(1200 * MIB)
    (elsewhere,) = plan(4_000, 4, [card], **asked)["cards"]
    (here,) = plan(4_000, 4, [card], here=True, **asked)["cards"]

    assert elsewhere["chosen"]["optim_8bit"] is True
    assert not here["fits"]
    assert {each["optim_8bit"] for each in here["considered"]} == {False}


def pilot_of(card, held, settings, **changes):
    """What a pilot on ``card`` measured: ``held`` bytes, where the planner predicts what it predicts."""
    terms = card["memory"]
    return {
        "source": "pilot.json", "device": {"kind": "cuda", "name": "NVIDIA L4", "memory_bytes": 22 * GIB},
        "settings": settings, "replicas": 1, "measured_bytes": held, "predicted_bytes": terms["peak_bytes"],
        "rounding_bytes": terms["rounding_bytes"], "update_seconds": 0.25, "updates": 50_000,
        "compile_times": {"compile_seconds": 60.0, "eager_seconds": 0.25, "compiled_seconds": 0.2}, **changes,
    }  # fmt: skip


def test_what_a_pilot_measured_is_used_where_it_holds(plan):
    """The same job on the same card takes what was measured, to the byte; another card in proportion."""
    cards = [find_card("L4"), find_card("H200")]
    first, _ = plan(64, 3, cards, global_batch=16)["cards"]
    effective = {**Hyperparameters.read({"global_batch": 16}).model_dump(mode="json"), "sampling": "shuffled"}
    effective |= {name: knob["effective"] for name, knob in first["settings"].items()}
    held = 3 * (first["memory"]["peak_bytes"] + first["memory"]["rounding_bytes"] + cards[0].library_bytes)
    same, other = plan(64, 3, cards, measured=pilot_of(first, held, effective), global_batch=16)["cards"]
    terms = same["memory"]

    assert terms["peak_bytes"] == first["memory"]["peak_bytes"]
    assert terms["needed_bytes"] - terms["context_bytes"] - terms["headroom_bytes"] == held
    assert same["settings"]["torch_compile"]["effective"] is True
    assert (
        "of the 50,000 to make; the pilot (pilot.json) measured it" in same["settings"]["torch_compile"]["why"]
    )
    assert other["grade"].startswith("predicted, CPU kernels, times 3.000 as measured by the pilot on")
    assert other["settings"]["torch_compile"]["effective"] is False
    assert other["update_seconds"] is None
    compiled = pilot_of(first, held, {**effective, "torch_compile": True})
    again, _ = plan(64, 3, cards, measured=compiled, global_batch=16)["cards"]
    assert again["grade"].startswith("measured by the pilot on NVIDIA L4")
    assert again["update_seconds"]["seconds"] == 0.25


def test_a_pilot_that_held_more_makes_a_card_too_small(plan):
    """A choice never goes above the card, as far as it was measured."""
    card = card_of(400 * MIB)
    (first,) = plan(256, 6, [card], global_batch=16)["cards"]
    there = {"kind": "cuda", "name": "Another 1", "memory_bytes": GIB}
    pilot = pilot_of(first, 300 * MIB, {}, device=there)
    (after,) = plan(256, 6, [card], measured=pilot, global_batch=16)["cards"]

    assert first["fits"]
    assert first["memory"]["correction_bytes"] == 0 < after["memory"]["correction_bytes"]
    assert not after["fits"] or after["memory"]["needed_bytes"] <= 400 * MIB
    assert after["chosen"] != first["chosen"]


@hypothesis.given(
    width=strategies.integers(2, 96), depth=strategies.integers(1, 2),
    share=strategies.sampled_from([6, 16]),
    asked=strategies.sampled_from(
        [{}, {"gradient_checkpointing": True}, {"microbatch": 2}, {"optim_8bit": False}]
    ),
    held=strategies.sampled_from([None, 0.9, 3.0]),
)  # fmt: skip
@hypothesis.settings(
    max_examples=3, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_a_plan_never_predicts_above_the_card_and_a_larger_card_is_never_slower(
    plan, width, depth, share, asked, held
):
    """Cards between the leanest and the fastest way, whatever was asked for and whatever a pilot held."""
    asked = {"global_batch": share, **asked}
    (first,) = plan(width, depth, [card_of(GIB)], **asked)["cards"]
    peak, most = first["memory"]["peak_bytes"], first["memory"]["needed_bytes"]
    pilot = pilot_of(first, round(held * peak), {}) if held else None
    most += round(peak * ((held or 1) - 1))
    sizes = [most - peak, most - peak // 4, most + 4 * peak]
    found = plan(width, depth, [card_of(size) for size in sizes], measured=pilot, **asked)["cards"]
    fitting = [each for each in found if each["fits"]]
    times = [each["relative_time"] for each in fitting]

    for each in found:
        assert each["fits"] == (each["memory"]["needed_bytes"] <= each["card"]["memory_bytes"])
    assert [each["fits"] for each in found] == sorted(each["fits"] for each in found)
    assert found[-1]["fits"]
    assert times == sorted(times, reverse=True)
    for each in fitting:
        assert {name: each["settings"][name]["effective"] for name in asked} == asked


def test_smaller_state_is_considered_on_every_card_alike(plan):
    """What a small card can do by it, a card that is a little larger can do as well."""
    whole, small = (
        plan(390, 3, [card_of(GIB)], global_batch=1, optim_8bit=bits)["cards"][0]["memory"]["needed_bytes"]
        for bits in (False, True)
    )
    sizes = [small + (whole - small) * quarter // 4 for quarter in range(5)]
    found = plan(390, 3, [card_of(size) for size in sizes], global_batch=1, gradient_checkpointing=False)[
        "cards"
    ]

    assert [each["fits"] for each in found] == [True] * 5
    assert [each["chosen"]["optim_8bit"] for each in found] == [True, True, True, True, False]
