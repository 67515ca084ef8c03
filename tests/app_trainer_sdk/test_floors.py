"""Floors as data: computed by a command, read by the catalog, dated by a digest."""

from __future__ import annotations

import dataclasses
import json

import pytest

from app_trainer_sdk.catalog import read_floors
from app_trainer_sdk.floors import FLOOR_CARD, floor_document, floor_job, floors_digest, main
from app_trainer_sdk.job import check_job
from app_trainer_sdk.quantities import GIB, MIB
from app_trainer_sdk.testing.toys import ToyTrainer

TOY = "app_trainer_sdk.testing.toys:ToyTrainer"


@pytest.mark.usefixtures("plans_here")
def test_floors_are_written_where_the_catalog_reads_them(tmp_path):
    """Every model has one for each method and for inference, with the settings and terms it came from."""
    file = tmp_path / "floors.json"
    code = main([TOY, "--write", str(file)])
    document = json.loads(file.read_text())
    floors = read_floors(file)["toy-mlp"]

    assert code == 0
    assert document["schema"] == "app.trainer.floors/v1"
    assert document["digest"] == floors_digest(ToyTrainer)
    assert floors.keys() == {"full", "inference"}
    assert {floor.grade for floor in floors.values()} == {"predicted"}
    assert floors["full"].evidence["microbatch"] == 1
    assert floors["full"].gib >= floors["inference"].gib > 0.9  # context and headroom alone are that much


def test_a_floor_is_predicted_and_declared_bytes_together():
    memory = {
        "peak_bytes": 3 * GIB, "rounding_bytes": 1, "library_bytes": 32 * MIB, "context_bytes": 650 * MIB,
        "headroom_bytes": 256 * MIB, "needed_bytes": 3 * GIB + 1 + 938 * MIB,
    }  # fmt: skip

    floor = floor_document(memory, "bf16", settings={"microbatch": 1})

    assert floor["gib"] == 3.92
    assert floor["evidence"]["predicted_bytes"] == 3 * GIB + 1
    assert floor["evidence"]["declared_bytes"] == 938 * MIB


def test_the_digest_follows_models_and_defaults(monkeypatch):
    """Another default of a model, or another shape, makes a floor out of date."""
    before = floors_digest(ToyTrainer)
    row = ToyTrainer.models[0]
    monkeypatch.setattr(ToyTrainer, "models", (dataclasses.replace(row, architecture={"width": 3}),))
    shape = floors_digest(ToyTrainer)
    monkeypatch.setattr(ToyTrainer, "models", (dataclasses.replace(row, defaults={"full": {"seed": 1}}),))
    default = floors_digest(ToyTrainer)

    assert len({before, shape, default}) == 3


def test_a_floor_is_that_of_a_job_that_says_nothing_else():
    settings, row, method = check_job(floor_job(ToyTrainer, "toy-mlp", "full"), ToyTrainer)

    assert (settings.microbatch, settings.global_batch, row.name, method) == (1, 1, "toy-mlp", "full")
    assert FLOOR_CARD.bf16


def test_an_unknown_trainer_is_refused(capsys):
    assert main(["texd"]) == 64
    assert "texd" in capsys.readouterr().err
