"""What planning predicts for a language model is what training it allocates."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from allocated import measured_peak

from app_trainer_sdk.choice import Candidate
from app_trainer_sdk.floors import floors_digest
from app_trainer_sdk.training.dry_run import Size, build_shapes, dry_run
from app_trainer_sdk.training.planning import model_floors
from app_trainer_sdk.training.predict import predict, with_residual
from app_trainer_sdk.training.second_process import second_process
from app_trainer_sdk.training.ways import MARGIN, Ways
from trainer_images.text import models
from trainer_images.text.models import MODELS
from trainer_images.text.trainer import TextTrainer

WITHIN = 0.01


MATRIX = [
    dict(zip(("gradient_checkpointing", "optim_8bit", "microbatch", "max_length"), values, strict=True))
    for values in itertools.product((False, True), (False, True), (1, 3), (24, 150))
]


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("settings", MATRIX, ids=lambda each: "-".join(map(str, each.values())))
def test_prediction_is_within_a_hundredth_of_what_is_allocated(plan_run, method, settings):
    """E3: two updates with the longest rows and an evaluation, over every knob that moves memory."""
    run = plan_run(method=method, **settings)

    measured = measured_peak(TextTrainer(), run)

    assert predict(TextTrainer(), run).peak.total == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("lora", {"microbatch": 2, "max_length": 96}),
        ("full", {"microbatch": 1, "max_length": 48, "gradient_checkpointing": True, "optim_8bit": True}),
    ],
    ids=["lora", "full"],
)
def test_prediction_holds_for_four_blocks_of_a_real_model(plan_run, method, settings):
    """The real widths and vocabulary, at random weights."""
    run = plan_run(MODELS[0], method, keep_layers=4, **settings)

    measured = measured_peak(TextTrainer(), run)

    assert predict(TextTrainer(), run).peak.total == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("full", {"gradient_accumulation_steps": 3}),
        ("full", {"ema_decay": 0.9}),
        ("full", {"optimizer": "sgd"}),
        ("lora", {"lora_dropout": 0.1, "lora_targets": ["q_proj", "v_proj"]}),
    ],
    ids=["accumulation", "average", "sgd", "dropout"],
)
def test_prediction_knows_the_other_settings_that_move_memory(plan_run, method, settings):
    run = plan_run(method=method, max_length=100, **settings)

    measured = measured_peak(TextTrainer(), run)

    assert predict(TextTrainer(), run).peak.total == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_prediction_in_bf16(plan_run, method):
    """Under autocast, with the frozen weights of LoRA in bf16."""
    run = plan_run(method=method, dtype=torch.bfloat16, max_length=100)

    measured = measured_peak(TextTrainer(), run)

    assert predict(TextTrainer(), run).peak.total == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize(("method", "recompute"), [("lora", False), ("full", True)])
def test_a_deep_model_follows_from_three_blocks(plan_run, method, recompute):
    """Two and three blocks give the line, one its residual; rehearsing all six gives the same."""
    run = plan_run(method=method, keep_layers=0, gradient_checkpointing=recompute, optim_8bit=True)

    predicted, whole = predict(TextTrainer(), run), dry_run(TextTrainer(), run)

    assert predicted.extrapolated
    assert with_residual(predicted, TextTrainer(), run).residual < 0.001
    assert predicted.size == whole.size
    assert predicted.snapshot_bytes == whole.snapshot_bytes
    assert predicted.peak.total == pytest.approx(max(each.total for each in whole.places.values()), rel=0.001)


def test_a_second_process_moves_no_byte(plan_run):
    """What is rehearsed beside this process is what would be rehearsed in it, also at its first 8-bit step."""
    run = plan_run(method="full", keep_layers=0, optim_8bit=True)

    with second_process(2):
        predicted = predict(TextTrainer(), run)

    assert predicted == predict(TextTrainer(), run)


@pytest.mark.parametrize(("method", "blocks"), [("lora", 2), ("full", 0)])
def test_ways_that_were_not_rehearsed_follow_from_those_that_were(plan_run, method, blocks):
    """8-bit state from one pair of ways, to the byte; a microbatch between two others from their line. Of a
    model that is rehearsed whole, and of one whose depth is extrapolated.
    """  # fmt: skip

    def run_of(way):
        return plan_run(method=method, keep_layers=blocks, max_length=100, dtype=torch.bfloat16, **way.knobs())

    size = Size.of(build_shapes(TextTrainer(), run_of(Candidate(1, 1, False, False))))
    ways, fresh = Ways(TextTrainer(), size, run_of), Ways(TextTrainer(), size, run_of)
    for known in (Candidate(1, 8, False, True), Candidate(1, 8, False, False), Candidate(4, 2, True, False)):
        ways.predict(known)
    composed = Candidate(4, 2, True, True)
    ways.predict(Candidate(1, 8, True, False))
    between = Candidate(2, 4, True, False)

    assert ways.predict(composed).phases == fresh.predict(composed).phases
    assert ways.predict(composed).snapshot_bytes == fresh.predict(composed).snapshot_bytes
    assert not ways.is_known(between)
    estimated, rehearsed = ways.estimate(between), fresh.predict(between)
    assert estimated.peak.total == pytest.approx(rehearsed.peak.total, rel=MARGIN / 2)
    assert ways.estimate(Candidate(8, 1, True, False)) is None


def test_a_card_is_planned_with_the_pieces_it_would_compute(plan_run):
    """Logits exist a thousand at a time on a card, and an eighth of that on the CPU."""
    run = plan_run(MODELS[0], max_length=600)

    on_cpu, on_card = (predict(TextTrainer(), run, kind=kind) for kind in ("cpu", "cuda"))

    assert on_card.peak.total > 1.5 * on_cpu.peak.total


def test_the_published_floors_are_those_that_would_be_computed_now():
    """Run ``app-trainer floors text --write trainer_images/text/floors.json`` when this fails.

    The digest knows models and defaults; the code is judged by what it computes for the smallest model.
    """
    published = json.loads(Path(models.__file__).with_name("floors.json").read_text())
    name = MODELS[0].name
    computed = model_floors(TextTrainer, name, ["lora"])  # the others take half a minute

    assert published["digest"] == floors_digest(TextTrainer)
    assert published["floors"].keys() == {row.name for row in MODELS}
    assert published["floors"][name].keys() == {*TextTrainer.methods, "inference"}
    for method, floor in computed.items():
        assert floor["gib"] == pytest.approx(published["floors"][name][method]["gib"], rel=WITHIN)
