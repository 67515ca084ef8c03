"""Real backbones, small labelled data and hand-made runs for the tests of the feature_head image."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from drawn_pictures import draw

from app_trainer_sdk.handle import Run
from trainer_images.feature_head import features, weights
from trainer_images.feature_head.models import MODELS
from trainer_images.feature_head.trainer import FeatureHeadTrainer

MakeRun = Callable[..., Run]
ROWS = {row.architecture["kind"]: row for row in MODELS}


@pytest.fixture(scope="session")
def packaged() -> Mapping[str, Path]:
    """The weights out of their packages, by kind; a missing package is a failure, never a skip."""
    found = {}
    for kind, row in ROWS.items():
        source = row.weights["base"]
        spec = importlib.util.find_spec(source.package.replace("-", "_"))
        assert spec is not None, f"install {source.package}: the tests use a real backbone"
        found[kind] = Path(spec.submodule_search_locations[0]) / source.file
    return found


@pytest.fixture(scope="session")
def converted(packaged, tmp_path_factory) -> Path:
    """The folder that the phase ``weights`` makes of the ONNX file."""
    folder = tmp_path_factory.mktemp("weights")
    run = Run(
        settings=None, model=ROWS["pictures"], method="head", directory=folder, cache=folder,
        weights={"base": packaged["pictures"]},
    )  # fmt: skip
    weights.convert(run, folder)
    return folder


@pytest.fixture
def make_run(tmp_path, packaged, converted) -> MakeRun:
    """A run as the SDK would make it, over rows of text or a folder of pictures."""

    def make(dataset: Any, *, base: Path | None = None, inputs: Any = None, **settings: Any) -> Run:
        kind = "pictures" if isinstance(dataset, Path) and dataset.is_dir() else "texts"
        paths = {"dataset": dataset, **(inputs or {})}
        defaults = FeatureHeadTrainer.defaults["head"]
        return Run(
            settings=FeatureHeadTrainer.hyperparameters_class.read({**defaults, **settings}),
            model=ROWS[kind],
            method="head",
            directory=tmp_path,
            cache=tmp_path / "cache",
            weights={"base": base or packaged[kind]},
            inputs={name: _file(tmp_path / f"{name}.jsonl", value) for name, value in paths.items()},
            store={"weights": converted},
            device=torch.device("cpu"),
            dtype=torch.float32,
        )

    return make


@pytest.fixture
def extracted(tmp_path) -> Callable[[Run], dict[str, Any]]:
    """Do the phase ``features`` and return its facts."""

    def work(run: Run) -> dict[str, Any]:
        run.store["features"] = tmp_path / "features"
        run.store["features"].mkdir(exist_ok=True)
        return dict(features.extract(run, run.store["features"]))

    return work


@pytest.fixture(name="draw")
def _draw() -> Callable[..., Path]:
    """Class folders of small pictures, all different."""
    return draw


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch) -> Iterator[None]:
    """Small pictures gain nothing from threads, and lose much on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    torch.set_num_threads(threads)


def _file(path: Path, value: Any) -> Path:
    if isinstance(value, Path):
        return value
    lines = [each if isinstance(each, str) else json.dumps(each) for each in value]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path
