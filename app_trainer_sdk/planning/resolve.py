"""Owns the decision of a run's numbers: from settings, facts of the data and facts of the device to a plan.

Pure: this file must not ask a device, read a file or import torch. A saved plan is reused on resume and never
resolved again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app_trainer_sdk.data_facts import (
    DataFacts,
    choose_sampling,
    cores_of_a_rank,
    groups_of_batches,
    refuse_impossible_order,
)
from app_trainer_sdk.errors import BadData, BadJob, HardwareUnfit, Problem
from app_trainer_sdk.hyperparameters import Hyperparameters, batch_equation
from app_trainer_sdk.plan import DeviceFacts, Effective, Plan
from app_trainer_sdk.planning.batch import split_update
from app_trainer_sdk.planning.workers import choose_workers
from app_trainer_sdk.tradeoffs import CompileTimes, choose_compile, choose_eight_bit, trained_parameters
from app_trainer_sdk.values import JSON
from app_trainer_sdk.windows import examples_seen, group_window_sizes, updates_per_epoch

BATCH = ("microbatch", "gradient_accumulation_steps", "global_batch")


def resolve_plan(
    settings: Hyperparameters,
    *,
    trainer: str,
    trainer_version: str,
    model: str,
    method: str,
    data: DataFacts,
    device: DeviceFacts,
    replicas: int = 1,
    asked: Mapping[str, Any] | None = None,
    parameters: int = 0,
    compile_times: CompileTimes | None = None,
    chosen: Mapping[str, Effective] | None = None,
    fit: Mapping[str, Any] | None = None,
) -> Plan:
    """Decide every number of a run.

    Args:
        settings: hyperparameters as validated, defaults merged.
        trainer: the trainer's name.
        trainer_version: its version.
        model: the catalog row's name.
        method: how it is trained.
        data: rows of the training split and what a batch must hold.
        device: the facts of one rank's device.
        replicas: data-parallel ranks.
        asked: what the job itself said, to tell a choice from a default.
        parameters: parameters of the model, or 0 when unknown.
        compile_times: what a pilot measured, if one ran.
        chosen: knobs decided elsewhere, for the card or by an earlier start; used where the settings say
            ``auto``.
        fit: how they were decided, kept with the plan.

    Raises:
        BadJob: the batch does not multiply out, or an impossible wish.
        BadData: fewer rows than one global batch.
        HardwareUnfit: a precision or an optimizer the device does not have.
    """
    chosen = {name: knob for name, knob in (chosen or {}).items() if getattr(settings, name) == "auto"}
    batch = split_update(settings, replicas, data, chosen)
    micro, steps, total = (_number(batch[name]) for name in BATCH)
    length = _length(settings, trainer, data, replicas, total)
    knobs = batch | length.knobs
    knobs |= _cadence(settings, length.updates) | _reading(settings, data, device, replicas)
    knobs |= _machine(settings, device, length.updates, trained_parameters(method, parameters), compile_times)
    knobs |= {name: knob for name, knob in chosen.items() if name not in BATCH}
    _refuse_impossible_state(knobs["optim_8bit"], device)
    knobs |= _said(settings, asked or {}, knobs)
    threads, why_threads = cores_of_a_rank(device.cores, device.cores_why, replicas)
    return Plan(
        trainer=trainer, trainer_version=trainer_version, model=model, method=method, updates=length.updates,
        examples_per_update=total, examples_seen=length.examples_seen, rows=data.rows,
        updates_per_epoch=length.updates_per_epoch, replicas=replicas, threads=threads, threads_why=why_threads,
        precision=str(knobs["mixed_precision"].effective), device=f"{device.kind}: {device.name}",
        batch=batch_equation(micro, steps, replicas) + " examples per update",
        settings=dict(sorted(knobs.items())), stream=data.stream, fit=dict(fit or {}),
    )  # fmt: skip


def _number(knob: Effective) -> int:
    assert isinstance(knob.effective, int)
    return knob.effective


@dataclass(frozen=True)
class _Length:
    """How long a run is, and the knobs that say so."""

    updates: int
    updates_per_epoch: int | None
    examples_seen: int
    knobs: dict[str, Effective]


def _length(settings: Hyperparameters, trainer: str, data: DataFacts, replicas: int, total: int) -> _Length:
    """From the order that rows are read in, and the windows of ``total`` rows that they make."""
    refuse_impossible_order(settings, data, replicas)
    groups = groups_of_batches(settings, trainer, data)
    per_epoch = _windows(data, total, groups)
    knobs = _duration(settings, per_epoch)
    updates = _number(knobs["updates"])
    return _Length(updates, per_epoch, _examples_seen(settings, updates, total, data, groups), knobs)


def _windows(data: DataFacts, total: int, groups: Sequence[int]) -> int | None:
    if data.rows is None:
        return None
    if data.rows < total:
        rows = "1 row" if data.rows == 1 else f"{data.rows} rows"
        raise BadData(
            f"the training split has {rows} and one update takes {total}",
            expected="at least one global batch of rows",
            setting="/hyperparameters/global_batch or the dataset",
        )
    if groups:
        return len(group_window_sizes(groups, total, data.minimum_rows))
    return updates_per_epoch(data.rows, total, data.minimum_rows)


def _duration(settings: Hyperparameters, per_epoch: int | None) -> dict[str, Effective]:
    epochs: int | None
    if settings.updates != "auto":
        epochs = None if per_epoch is None else -(-settings.updates // per_epoch)
        told = Effective(settings.epochs, epochs, "passes that the updates begin")
        return {"updates": Effective(settings.updates, settings.updates, "asked for"), "epochs": told}
    if per_epoch is None:
        wrong = Problem("/hyperparameters/updates", "'auto'", "a number, since this trainer's data has no rows")
        raise BadJob("the length of the run is unknown:", problems=[wrong])
    epochs = settings.auto_epochs if settings.epochs == "auto" else settings.epochs
    why = "the default, since neither updates nor epochs is given" if settings.epochs == "auto" else "asked for"
    updates = Effective("auto", epochs * per_epoch, f"{epochs} epochs × {per_epoch} updates")
    return {"epochs": Effective(settings.epochs, epochs, why), "updates": updates}


def _examples_seen(
    settings: Hyperparameters, updates: int, total: int, data: DataFacts, groups: Sequence[int]
) -> int:
    if data.rows is None:
        return updates * total
    return examples_seen(updates, data.rows, total, data.minimum_rows, groups=groups, seed=settings.seed)


def _cadence(settings: Hyperparameters, updates: int) -> dict[str, Effective]:
    choices = {
        "warmup_updates": (-(-updates * 3 // 100), "3 % of the updates"),
        "evaluate_every": (-(-updates // 4), "four times in the run"),
        "checkpoint_every": (-(-updates // 10), "ten times in the run"),
    }
    return {name: _choose(settings, name, *choice) for name, choice in choices.items()}


def _reading(
    settings: Hyperparameters, data: DataFacts, device: DeviceFacts, replicas: int
) -> dict[str, Effective]:
    """How rows are drawn, and by how many processes read."""
    cores, _ = cores_of_a_rank(device.cores, "", replicas)
    choices: dict[str, tuple[JSON, str]] = {
        "sampling": choose_sampling(data),
        "dataloader_workers": choose_workers(data, device, cores=cores),
    }
    return {name: _choose(settings, name, *choice) for name, choice in choices.items()}


def _machine(
    settings: Hyperparameters, device: DeviceFacts, updates: int, trained: int | None,
    compile_times: CompileTimes | None,
) -> dict[str, Effective]:  # fmt: skip
    """What depends on the device: precision, and what trades memory or start-up for speed."""
    whole = (False, "recomputing costs time; ask for it when memory is short")
    return {
        "mixed_precision": _precision(settings, device),
        "gradient_checkpointing": _choose(settings, "gradient_checkpointing", *whole),
        "torch_compile": _choose(settings, "torch_compile", *choose_compile(compile_times, updates)),
        "optim_8bit": _eight_bit(settings, device, trained),
    }


def _precision(settings: Hyperparameters, device: DeviceFacts) -> Effective:
    asked = settings.mixed_precision
    if asked == "bf16" and device.kind != "cpu" and not device.bf16:
        raise HardwareUnfit(
            f"{device.name} has no bf16 arithmetic", expected="a card that has it",
            setting="/hyperparameters/mixed_precision to 'auto' or 'fp16'",
        )  # fmt: skip
    if asked != "auto":
        return Effective(asked, asked, "asked for")
    if device.kind == "cpu":
        return Effective(asked, "no", "fp32 on the CPU unless asked")
    if device.bf16:
        return Effective(asked, "bf16", f"{device.name} has bf16 arithmetic")
    return Effective(asked, "fp16", f"{device.name} has no bf16 arithmetic: fp16 with a loss scale")


def _eight_bit(settings: Hyperparameters, device: DeviceFacts, trained: int | None) -> Effective:
    problem = device.eight_bit_problem
    choice = choose_eight_bit(
        optimizer=settings.optimizer, trained=trained, memory_bytes=device.memory_bytes, problem=problem
    )
    return _choose(settings, "optim_8bit", *choice)


def _choose(settings: Hyperparameters, name: str, value: JSON, why: str) -> Effective:
    asked = getattr(settings, name)
    return Effective(asked, value, why) if asked == "auto" else Effective(asked, asked, "asked for")


def _refuse_impossible_state(knob: Effective, device: DeviceFacts) -> None:
    problem = device.eight_bit_problem
    if knob.effective is True and problem:
        raise HardwareUnfit(
            f"a step of 8-bit AdamW on {device.name} does not work: {problem}",
            expected="bitsandbytes and a device it supports",
            setting="/hyperparameters/optim_8bit to 'auto' or false",
        )


def _said(
    settings: Hyperparameters, asked: Mapping[str, Any], knobs: Mapping[str, Effective]
) -> dict[str, Effective]:
    """Every setting that has a value: the job's word, or a default."""
    return {
        name: Effective(
            value,
            knobs[name].effective if name in knobs else value,
            "asked for" if name in asked else "default",
        )
        for name, value in settings.model_dump(mode="json").items()
        if value != "auto"
    }
