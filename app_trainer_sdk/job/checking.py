"""Owns checking a job against its trainer: model, method, inputs, weights, outputs and hyperparameters.

Hyperparameters are checked only through the trainer's own class. This file must not know how a job is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.contract_check import merged_defaults
from app_trainer_sdk.errors import BadJob, Problem, did_you_mean, json_pointer
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.job.document import Job
from app_trainer_sdk.names import clash

#: How a set of weights may be named.
PLACES = ("url", "files", "hub")


def check_job(job: Job, trainer: type[Trainer]) -> tuple[Hyperparameters, ModelRow, str]:
    """Check what only the trainer knows: model, method, inputs, hyperparameters; all problems at once.

    Returns:
        the settings as asked (defaults merged), the catalog row and the method.
    """
    problems: list[Problem] = []
    rows = {row.name: row for row in trainer.models}
    method = job.method or trainer.methods[0]
    if job.model not in rows:
        problems.append(_unknown("/model", job.model, rows, "a model of the trainer"))
    if method not in trainer.methods:
        problems.append(_unknown("/method", method, trainer.methods, "a method of the trainer"))
    problems += _input_problems(job, trainer) + _weight_problems(job, rows.get(job.model))
    if job.model in rows and method in trainer.methods:
        defaults = merged_defaults(trainer, rows[job.model], method)
        values = {**_not_asked_otherwise(defaults, job.hyperparameters), **job.hyperparameters}
    else:
        values = dict(job.hyperparameters)
    settings, wrong = trainer.hyperparameters_class.inspect(values)
    problems += wrong
    problems += _output_problems(job, trainer, method) + _place_problems(job)
    if problems or settings is None:
        raise BadJob("the job cannot be used:", problems=problems)
    return settings, rows[job.model], method


def _not_asked_otherwise(defaults: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults that do not contradict what the job says: asking for epochs drops a default for updates."""
    kept = dict(defaults)
    if "updates" in asked or "epochs" in asked:
        kept.pop("updates", None)
        kept.pop("epochs", None)
    batch = {"global_batch", "microbatch", "gradient_accumulation_steps"}
    if batch & asked.keys():
        kept = {name: value for name, value in kept.items() if name not in batch}
    return kept


def _input_problems(job: Job, trainer: type[Trainer]) -> list[Problem]:
    problems = [
        _unknown(f"/inputs/{name}", name, trainer.inputs, "an input of the trainer")
        for name in job.inputs
        if name not in trainer.inputs
    ]
    for name, described in trainer.inputs.items():
        if described.required and name not in job.inputs:
            problems.append(Problem(f"/inputs/{name}", "nothing", f"a path or URL: {described.description}"))
    return problems


def _weight_problems(job: Job, row: ModelRow | None) -> list[Problem]:
    problems = []
    for role, asked in job.weights.items():
        pointer = f"/weights/{role}"
        if row is not None and row.weights and role not in row.weights:
            problems.append(_unknown(pointer, role, row.weights, "a set of weights of the model"))
        elif len(said := [each for each in PLACES if getattr(asked, each) is not None]) != 1:
            expected = "one of the three: url, files, or hub with revision"
            problems.append(Problem(pointer, " and ".join(said) or "neither url, files nor hub", expected))
        elif asked.files is not None and (wrong := clash(each.path for each in asked.files)):
            problems.append(Problem(f"{pointer}/files", wrong, "each name once"))
        elif asked.url is None and (asked.size is not None or asked.sha256 is not None):
            problems.append(
                Problem(pointer, f"size or sha256 beside {said[0]}", "them beside url, or in files")
            )
        elif asked.hub is not None and not asked.revision:
            problems.append(Problem(f"{pointer}/revision", "nothing", "the commit of the Hub repository"))
    return problems


def _output_problems(job: Job, trainer: type[Trainer], method: str) -> list[Problem]:
    if method not in trainer.methods:
        return []  # told already; what the method hands over is not known
    known = trainer.artifacts.get(method, ())
    places = [(f"/outputs/required/{index}", name) for index, name in enumerate(job.outputs.required)]
    places += [(json_pointer("outputs", "put", key), key.partition("/")[0]) for key in job.outputs.put or ()]
    return [
        _unknown(pointer, name, known, "an artifact of the method")
        for pointer, name in places
        if name not in known
    ]


def _place_problems(job: Job) -> list[Problem]:
    """Where outputs go, and where a checkpoint comes from."""
    problems, outputs = [], job.outputs
    if outputs.grant_url is not None and outputs.put is not None:
        problems.append(Problem("/outputs", "grant_url and put", "one of the two"))
    if outputs.checkpoints and outputs.grant_url is None:
        problems.append(Problem("/outputs/checkpoints", "no grant_url", "somebody who grants their upload"))
    for index, each in enumerate(job.resume.files if job.resume else ()):
        if each.sha256 is None or each.size is None:
            problems.append(Problem(f"/resume/files/{index}", "no size or no sha256", "both"))
    if job.resume and (wrong := clash(each.path for each in job.resume.files)):
        problems.append(Problem("/resume/files", wrong, "each name once"))
    return problems


def _unknown(pointer: str, found: str, known: Any, expected: str) -> Problem:
    return Problem(pointer, repr(found), expected, did_you_mean(found, known))
