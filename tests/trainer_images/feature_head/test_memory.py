"""What planning predicts for the extraction and the head is what they allocate."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from allocated import allocated_peak, measured_peak

from app_trainer_sdk.floors import floors_digest
from app_trainer_sdk.handle import Run
from app_trainer_sdk.training.device import DTYPES
from app_trainer_sdk.training.phase_rehearsal import rehearse_phases
from app_trainer_sdk.training.planning import model_floors
from app_trainer_sdk.training.predict import predict
from trainer_images.feature_head import models
from trainer_images.feature_head.models import MODELS
from trainer_images.feature_head.trainer import FeatureHeadTrainer

WITHIN = 0.01
TEXTS, PICTURES = MODELS
EXTRACTIONS = [
    *itertools.product([TEXTS], (1, 4), (16,), ("no",)), (TEXTS, 4, 64, "no"), (TEXTS, 4, 16, "bf16"),
    *itertools.product([PICTURES], (1, 3), (16,), ("no", "bf16")),
]  # fmt: skip
HEADS = [*itertools.product(MODELS, (False, True), (2, 32), (0, 256))]


@pytest.fixture
def plan_run(tmp_path):
    """A run with every setting decided, over no rows and no weights."""

    def make(row, **settings):
        decided = {
            "updates": 10, "warmup_updates": 0, "microbatch": 8, "gradient_accumulation_steps": 1,
            "torch_compile": False, "optim_8bit": False, "gradient_checkpointing": False,
            "mixed_precision": "no", **FeatureHeadTrainer.defaults["head"], **settings,
        }  # fmt: skip
        decided["global_batch"] = decided["microbatch"]
        return Run(
            settings=FeatureHeadTrainer.hyperparameters_class.read(decided), model=row, method="head",
            directory=tmp_path, cache=tmp_path, device=torch.device("cpu"),
            dtype=DTYPES[decided["mixed_precision"]],
        )  # fmt: skip

    return make


@pytest.mark.parametrize(
    ("row", "rows", "length", "precision"), EXTRACTIONS, ids=lambda each: getattr(each, "name", each)
)
def test_the_extraction_is_predicted_within_a_hundredth(plan_run, row, rows, length, precision):
    """E3: the backbone over its largest batch, by the function that the phase calls."""
    run = plan_run(row, extraction_batch=rows, max_length=length, mixed_precision=precision)
    shapes = FeatureHeadTrainer().phase_shapes(run)["features"]
    backbone, batch = shapes.build(), shapes.batch()
    held = [*backbone.parameters(), *backbone.buffers(), *batch.values()]

    measured = allocated_peak(held, lambda: shapes.work(backbone, batch))

    assert rehearse_phases(FeatureHeadTrainer(), run)["features"].total == pytest.approx(measured, rel=WITHIN)


@pytest.mark.parametrize(
    ("row", "small", "rows", "hidden"), HEADS, ids=lambda each: getattr(each, "name", each)
)
def test_the_head_is_predicted_within_a_hundredth(plan_run, row, small, rows, hidden):
    """E3: two updates and an evaluation, the backbone gone."""
    run = plan_run(row, optim_8bit=small, microbatch=rows, hidden_width=hidden)

    measured = measured_peak(FeatureHeadTrainer(), run)

    assert predict(FeatureHeadTrainer(), run).peak.total == pytest.approx(measured, rel=WITHIN)


def test_a_plan_tells_the_extraction_among_the_phases(plan_run):
    """The card must hold the backbone for a while, whatever the head takes after it."""
    run = plan_run(TEXTS, max_length=128)
    extraction = rehearse_phases(FeatureHeadTrainer(), run, kind="cuda")

    told = predict(FeatureHeadTrainer(), run, kind="cuda").after(extraction).document()

    assert told["preparation"] == {"features": extraction["features"].total}
    assert told["peak_in"] == "prepare features"
    assert told["peak_bytes"] == extraction["features"].total > 4 * TEXTS.parameters


def test_the_published_floors_are_those_that_would_be_computed_now():
    """When this fails: ``app-trainer floors feature_head --write trainer_images/feature_head/floors.json``."""
    published = json.loads(Path(models.__file__).with_name("floors.json").read_text())

    assert published["digest"] == floors_digest(FeatureHeadTrainer)
    assert published["floors"] == {row.name: model_floors(FeatureHeadTrainer, row.name) for row in MODELS}
