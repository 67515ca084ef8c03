"""The pilot: everything once, in processes of its own, with a verdict and without a trace."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from app_trainer_sdk import pilot, run
from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.files import sha256_tree

SETTINGS = {
    "rows": 12,
    "validation_rows": 3,
    "updates": 4,
    "global_batch": 4,
    "microbatch": 2,
    "ema_decay": 0.9,
}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A cache of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def job(folder: Path, **settings: Any) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps({
        "job_id": "piloted", "trainer": "app_trainer_sdk.testing.toys:ToyTrainer", "model": "toy-mlp",
        "hyperparameters": {**SETTINGS, **settings},
    }))  # fmt: skip
    return path


@pytest.fixture(scope="module")
def piloted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExitCode, str]:
    """A job's directory after its pilot, the pilot's exit code and what it printed."""
    folder = tmp_path_factory.mktemp("piloted")
    told = io.StringIO()
    code = pilot.pilot_job(job(folder), folder / "out", console=Console(told))
    return folder, code, told.getvalue()


@pytest.fixture(scope="module")
def document(piloted: tuple[Path, ExitCode, str]) -> dict[str, Any]:
    """``pilot.json``."""
    read: dict[str, Any] = json.loads((piloted[0] / "out" / "pilot" / "pilot.json").read_text())
    return read


def test_everything_once(piloted, document):
    """A row for each operation, a checkpoint taken up elsewhere bit for bit, an artifact asked again: go."""
    _, code, told = piloted
    names = [row["phase"] for row in document["phases"]]

    assert (code, document["go"]) == (ExitCode.SUCCEEDED, True), told
    for name in ("load", "longest update 2", "longest evaluate", "updates", "evaluation", "save", "restore"):
        assert name in names
    assert names[-3:] == ["export", "replay", "mechanics"]
    assert document["restore"]["different"] == []
    assert document["restore"]["tensors"] > 8
    assert document["restore"]["evaluation_here"] == document["restore"]["evaluation_there"]
    assert document["replay"] == {"asked": 2, "same": True}
    assert document["mechanics"]["last"] <= 0.9 * document["mechanics"]["first"]


def test_the_prediction_stands_beside_the_measurement(document):
    """On the CPU both count bytes handed out at once, and agree within a few per cent for a tiny model."""
    predicted = document["predicted"]

    assert predicted["ratio"] == pytest.approx(1.0, abs=0.05)
    assert predicted["ratio"] == pytest.approx(
        predicted["measured_bytes"] / predicted["rehearsed_bytes"], abs=1e-4
    )
    assert document["compile"] is None  # minutes on a CPU, for nothing


def test_one_page(piloted, document):
    """Verdict, time of the run by part, memory of each operation, what was restored and learnt."""
    page = (piloted[0] / "out" / "pilot" / "pilot.md").read_text()

    assert page.startswith("# piloted: go\n")
    assert f"| total | {document['estimate']['total']:,.1f} |" in page
    small = document["predicted"]["measured_bytes"] / (1 << 20)
    assert f"measured {small:.3g} MiB" in page
    for heading in ("What it would take", "Every operation once", "Saved and restored", "Mechanics"):
        assert f"\n## {heading}" in page
    assert page.splitlines()[0] in piloted[2]


def test_no_trace(piloted, tmp_path):
    """N3: the run after a pilot makes the numbers, the checkpoint and the artifact of one without."""
    folder, _, _ = piloted
    assert [each.name for each in (folder / "out").iterdir()] == ["pilot"]
    assert not [
        each for each in (folder / "out" / "pilot").iterdir() if each.name in ("checkpoints", "artifacts")
    ]
    codes = [
        run.main(["--quiet", "--job", str(job(each)), "--job-dir", str(each / "out")])
        for each in (folder, tmp_path)
    ]

    assert codes == [0, 0]
    first, second = (each / "out" for each in (folder, tmp_path))
    assert losses(first) == losses(second)
    assert sha256_tree(first / "artifacts") == sha256_tree(second / "artifacts")


def losses(directory: Path) -> list[Any]:
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [(line["ids"], line["loss"], line["gradient_norm"]) for line in lines]


def test_what_cannot_learn_is_no_go(tmp_path):
    """A rate at which nothing moves is told before hours of it, with exit code 70."""
    told = io.StringIO()
    code = pilot.pilot_job(job(tmp_path, learning_rate=1e-12), tmp_path / "out", console=Console(told))
    document = json.loads((tmp_path / "out" / "pilot" / "pilot.json").read_text())

    assert (code, document["go"]) == (ExitCode.INTERNAL_ERROR, False)
    assert document["reasons"][0].startswith("mechanics: 2 rows trained 60 times went from loss")


def test_two_ranks_have_rows_each(tmp_path):
    """Rows of both ranks, and the time that summing their gradients takes."""
    code = pilot.pilot_job(job(tmp_path), tmp_path / "out", console=Console(quiet=True), ranks=2)
    document = json.loads((tmp_path / "out" / "pilot" / "pilot.json").read_text())

    assert code == ExitCode.SUCCEEDED, document["reasons"]
    assert {row["rank"] for row in document["phases"] if row["phase"] == "longest update 2"} == {0, 1}
    assert document["updates"]["communication_seconds"] > 0


def test_a_wrong_job_is_refused_before_anything(tmp_path, capsys):
    """64, as for run."""
    path = job(tmp_path, rows="many")

    assert pilot.main(["--job", str(path), "--job-dir", str(tmp_path / "out")]) == ExitCode.BAD_JOB
    assert not (tmp_path / "out").exists()
