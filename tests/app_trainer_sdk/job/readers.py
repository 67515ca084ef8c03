"""A trainer with everything a job can name wrongly, and the refusals of jobs for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from empty_hooks import OWED

from app_trainer_sdk import Input, ModelRow, SupervisedTrainer, WeightSource
from app_trainer_sdk.errors import BadJob, ExitCode
from app_trainer_sdk.job import check_job, load_job, read_job

MINIMAL = {"trainer": "reader", "model": "reader-small", "inputs": {"dataset": "rows.jsonl"}}
FILE = {"path": "model.safetensors", "urls": ["https://a/w"], "size": 3, "sha256": "0" * 64}


class Reader(SupervisedTrainer):
    """A trainer with everything a job can name wrongly."""

    name = "reader"
    version = "1"
    methods = ("lora", "full")
    models = (
        ModelRow(
            "reader-small", "Small", 1, weights={"base": WeightSource("r1", hub="a/b")},
            defaults={"lora": {"epochs": 2, "global_batch": 16}},
        ),
    )  # fmt: skip
    inputs = {"dataset": Input("Rows to read."), "controls": Input("Questions.", required=False)}  # noqa: RUF012
    artifacts = {"lora": ("adapter",), "full": ("weights",)}  # noqa: RUF012
    vars().update(OWED)


def written(folder: Path, text: str | bytes, name: str = "job.json") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BadJob) as caught:
        load_job(path)

    assert caught.value.code is ExitCode.BAD_JOB

    return str(caught.value)


def problems(document: Any, trainer: type = Reader) -> dict[str, str]:
    with pytest.raises(BadJob) as caught:
        check_job(read_job(document), trainer)
    return {problem.pointer: str(problem) for problem in caught.value.problems}
