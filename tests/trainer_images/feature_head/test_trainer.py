"""The table of contents, the promises, and the example as a whole job."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from drawn_pictures import draw

from app_trainer_sdk.testing import TrainerConformance

EXAMPLES = Path(__file__).resolve().parents[3] / "trainer_images/feature_head/examples"
CHECK = """
import sys
from trainer_images.feature_head.trainer import FeatureHeadTrainer
heavy = {"torch", "transformers", "onnx", "PIL", "numpy", "safetensors"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


def test_it_is_imported_without_torch():
    """Importing the trainer imports none of the heavy packages, not even through others."""
    done = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


class TestPromises(TrainerConformance):
    """Every promise, on pictures: their backbone needs no transformers, which takes seconds to import."""

    trainer = "trainer_images.feature_head.trainer:FeatureHeadTrainer"
    model = "resnet50-thin"

    @classmethod
    def setup_class(cls):
        cls.own = contextlib.ExitStack()
        folder = Path(cls.own.enter_context(tempfile.TemporaryDirectory()))
        cls.own.enter_context(pytest.MonkeyPatch.context()).setenv(
            "APP_TRAINER_CACHE_DIR", str(folder / "cache")
        )
        cls.inputs = {"dataset": draw(folder / "data", {"bar": 8, "circle": 8, "square": 8})}
        super().setup_class()

    @classmethod
    def teardown_class(cls):
        super().teardown_class()
        cls.own.close()


def test_the_example_is_a_whole_job(tmp_path, monkeypatch):
    """The committed job, shorter: it learns, exports, and the head answers again in a new process."""
    for name in ("parts_of_speech.json", "parts_of_speech.jsonl"):
        shutil.copy(EXAMPLES / name, tmp_path)
    job = json.loads((tmp_path / "parts_of_speech.json").read_text())
    job["hyperparameters"] = {"epochs": 8, "test_share": 0.3}
    (tmp_path / "job.json").write_text(json.dumps(job))
    monkeypatch.setenv("APP_TRAINER_CACHE_DIR", str(tmp_path / "cache"))
    command = [sys.executable, "-m", "app_trainer_sdk.run", "--job", "job.json", "--job-dir", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "out/result.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "out/evaluations.jsonl").read_text().splitlines()]
    test = [line for line in lines if line["split"] == "test"][-1]

    assert result["replay"] == {"asked": 8, "same": True}
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert "rows measured here" in plan["settings"]["dataloader_workers"]["why"]  # what the phases had made
    assert plan["settings"]["dataloader_workers"]["effective"] == 0
    assert test["accuracy"] > 0.6  # nouns alone are 53 %
