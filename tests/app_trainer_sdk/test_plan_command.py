"""The command ``plan``: what it answers, in which form, with which exit code."""

from __future__ import annotations

import json

import pytest

from app_trainer_sdk.choice import Candidate
from app_trainer_sdk.errors import BadJob
from app_trainer_sdk.gpus import find_card
from app_trainer_sdk.job import load_job
from app_trainer_sdk.plan_command import main, read_prices
from app_trainer_sdk.plan_schema import PlanDocument
from app_trainer_sdk.plan_table import render
from app_trainer_sdk.testing.toys import ToyTrainer

TOY = "app_trainer_sdk.testing.toys:ToyTrainer"


def test_a_plan_as_json(job, capsys):
    """Every card asked about, in order, with its price; no GPU, no weights, no data."""
    code = main(["--job", job(), "--gpu", "L4", "--gpu", "0.2GiB", "--price", "L4=0.8", "--json"])
    printed = capsys.readouterr()
    document = json.loads(printed.out)

    assert code == 0
    assert printed.err == "plan: rehearsing toy-mlp without weights, for L4, 0.2GiB ...\n"
    assert document["schema"] == "app.trainer.fit/v1"
    assert document["fits"] is True
    assert [(each["card"]["name"], each["fits"]) for each in document["cards"]] == [
        ("L4", True),
        ("0.2GiB", False),
    ]
    assert [each["price_per_hour"] for each in document["cards"]] == [0.8, None]
    document["replicas"], document["cards"][0]["update_seconds"] = 2, {"seconds": 0.36, "grade": "measured"}
    table = render(document)
    assert " 1.60\n" in table  # of both cards
    assert "an update on L4: 0.36 s (measured), 1,000 cost 0.16" in table
    assert document["cards"][0]["prediction"]["grade"] == "predicted, CPU kernels"
    PlanDocument.model_validate(document)


@pytest.mark.usefixtures("plans_here")
def test_the_pilot_of_the_directory_is_used(job, tmp_path, capsys):
    """What it measured stands beside what is predicted, with the file it was read from."""
    card = find_card("L4")
    document = {
        "schema": "app.trainer.pilot/v1", "settings": {}, "updates": {"seconds": 0.5}, "compile": None,
        "run": {
            "trainer": "toy", "trainer_version": ToyTrainer.version, "model": "toy-mlp", "method": "full",
            "updates": 7,
        },
        "device": {"kind": "cuda", "name": "NVIDIA L4", "memory_bytes": card.memory_bytes},
        "predicted": {
            "rehearsed_bytes": 1 << 20, "rounding_bytes": 0,
            "measured_bytes": 2 * ((1 << 20) + card.library_bytes),
        },
    }  # fmt: skip
    path = tmp_path / "pilot" / "pilot.json"
    path.parent.mkdir()
    path.write_text(json.dumps(document))
    told = ["--job", job(), "--gpu", "L4", "--job-dir", str(tmp_path), "--json"]
    code = main(told)
    found = json.loads(capsys.readouterr().out)

    assert code == 0
    assert found["pilot"] == {"source": str(path), "device": "NVIDIA L4"}
    assert found["cards"][0]["grade"].startswith("predicted, CPU kernels, times 2.000 as measured by the pilot")
    assert found["cards"][0]["memory"]["correction_bytes"] > 0
    PlanDocument.model_validate(found)
    path.write_text("{}")
    assert main(["--job", job(), "--gpu", "L4", "--pilot", str(path)]) == 64
    assert "--pilot" in capsys.readouterr().err


@pytest.mark.usefixtures("plans_here")
def test_the_chosen_settings_become_a_job(job, tmp_path, capsys):
    """What was chosen is said in the job, so that its run is the one that was planned."""
    file = tmp_path / "planned.json"
    code = main(["--job", job(global_batch=6, seed=3), "--gpu", "L4", "--write-job", str(file), "--json"])
    capsys.readouterr()
    written = load_job(file)

    assert code == 0
    assert written.identifier() != load_job(tmp_path / "job.json").identifier()
    assert written.hyperparameters == {"seed": 3, "global_batch": 6, **Candidate(6, 1, False, False).knobs()}


@pytest.mark.usefixtures("plans_here")
def test_a_plan_that_fits_nowhere_ends_with_78(job, capsys):
    """E3: refused before anything is downloaded, with what would fit."""
    code = main(["--job", job(), "--gpu", "0.2GiB"])
    told = capsys.readouterr().out

    assert code == 78
    assert "0.2GiB is too small even at its leanest; it would fit with a T4" in told
    assert "predicted peak" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--gpu", "H3000"], "did you mean"),
        (["--price", "L4=cheap"], "expected a number of at least 0"),
        (["--price", "LS40=1"], "--price: found 'LS40'"),
        (
            ["--price", "L4=0.8", "--gpu", "H200"],
            "--price: found L4; expected one of",
        ),
        (["--prices", "nowhere.json"], "nothing at nowhere.json"),
    ],
    ids=["card", "price", "price of a card", "other card", "prices"],
)
def test_wrong_arguments_are_refused_at_once(job, capsys, arguments, told):
    assert main(["--job", job(), *arguments]) == 64
    assert told in capsys.readouterr().err


def test_a_wrong_job_is_refused_with_its_problems(job, capsys):
    assert main(["--job", job(microbatsch=3)]) == 64
    assert "microbatch" in capsys.readouterr().err


def test_prices_come_from_a_file_and_from_words(tmp_path):
    file = tmp_path / "prices.json"
    file.write_text('{"h200": 3.5, "L4": 0.9}')

    assert read_prices(file, ["l4=0.8"]) == {"H200": 3.5, "L4": 0.8}
    file.write_text("[1]")
    with pytest.raises(BadJob, match="is no object"):
        read_prices(file, [])
