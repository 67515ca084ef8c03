"""Owns opening a job inside a rank: from ``start.json`` to a ``run`` handle, its plan and its prepared phases.

Both the training process and the replay process begin here, so both see the same run. This file must not know
how anything is trained.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from app_trainer_sdk.cache.folders import Folders
from app_trainer_sdk.catalog import ModelRow
from app_trainer_sdk.changes import RANDOM, SETTINGS, Difference, refuse_differences
from app_trainer_sdk.checkpoints import IDENTITY, PLAN, Checkpoint, read_document
from app_trainer_sdk.choice import KNOBS
from app_trainer_sdk.contract import SupervisedTrainer, Trainer
from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.errors import BadData, BadJob, InternalError
from app_trainer_sdk.files import read_json, write_json
from app_trainer_sdk.handle import Run, no_check, no_progress
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.job import check_job
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.plan import DeviceFacts, Effective, Plan
from app_trainer_sdk.planning.measured import Measured
from app_trainer_sdk.planning.resolve import resolve_plan
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.start import Start
from app_trainer_sdk.tradeoffs import CompileTimes
from app_trainer_sdk.training.checkpoint import CheckpointStore, load_checkpoint
from app_trainer_sdk.training.device import DTYPES, device_facts, pick_device
from app_trainer_sdk.training.identity import compare_identity, describe_identity
from app_trainer_sdk.training.ledger import Ledger
from app_trainer_sdk.training.memory import probe_for
from app_trainer_sdk.training.optim import eight_bit_problem_apart
from app_trainer_sdk.training.phases import run_phases
from app_trainer_sdk.training.random_state import random_problem
from app_trainer_sdk.values import Examination

#: Knobs that a first start chooses by size and time, for all that follow; the second ones only where they
#: were chosen for a card.
CHOSEN_ONCE, CHOSEN_FOR_A_CARD = ("optim_8bit", "torch_compile"), KNOBS


@dataclasses.dataclass(frozen=True)
class Opened:
    """A job ready to be worked on.

    Attributes:
        trainer: an instance.
        run: its handle; settings are resolved once the plan is there.
        asked: settings as asked, defaults merged.
        facts: the device.
        examination: what reading the data's index told.
    """

    trainer: Trainer
    run: Run
    asked: Hyperparameters
    facts: DeviceFacts
    examination: Examination


def open_job(
    start: Start, *, ledger: Ledger, check: Callable[[], None], progress: Callable[..., None], rank: int = 0
) -> Opened:
    """Find the trainer, check the job once more and read the index of the data."""
    job = start.read_job()
    trainer = find_trainer(job.trainer)()
    settings, row, method = check_job(job, type(trainer))
    _refuse_ranks(trainer, start.ranks)
    device = pick_device(rank)
    run = _handle(start, settings, row, method, device, ledger, check, progress)
    Folders(run.cache).hold_compiled()  # before anything is compiled, or looked for
    with ledger.phase("examine", releases=False):
        examination = trainer.examine(run)
    if examination.rows == 0:
        raise BadData("the training split has no rows", expected="at least one", setting="/inputs")
    run.facts["examine"] = examination.facts
    known = {f"weights/{role}": identity for role, identity in start.weights_identity.items()}
    if examination.fingerprint:
        known["data"] = examination.fingerprint
    run = dataclasses.replace(run, identity=known)
    return Opened(trainer, run, settings, device_facts(device), examination)


def settle_plan(
    opened: Opened, start: Start, store: CheckpointStore, *,
    probe: Callable[[torch.device], str] = eight_bit_problem_apart, writes: bool = True,
) -> tuple[Plan, Checkpoint | None]:  # fmt: skip
    """The plan: the saved one when there is one, else resolved now and saved.

    What the start was allowed to change is taken from now, and recorded in the plan.

    Args:
        opened: the job.
        start: this start of it.
        store: its checkpoints.
        probe: tells why 8-bit AdamW does not work on a device; asked only when the plan wants it.
        writes: whether the plan is written; of several ranks by one alone.

    Raises:
        BadJob: a checkpoint exists and this start would not continue it exactly; all differences are told. Or
            none can be written.
        InternalError: there are checkpoints of this job and not one of them is whole.
        DiskFull: there is no room to begin one.
    """
    store.prepare()
    checkpoint, skipped = store.newest()
    if checkpoint is None:
        _refuse_to_start_over(store, skipped)
    layout = start.layout
    saved = None if checkpoint is None else Plan.from_document(read_document(checkpoint, PLAN))
    fresh = _resolve(opened, start, saved, probe)
    plan = fresh
    if checkpoint is not None and saved is not None:
        plan = _continued(opened, start, checkpoint, saved, fresh)
    if writes:
        keep_plan(layout, plan)
    if writes and _kept(layout.job, dict) != start.job:
        write_json(layout.job, start.job)  # what the directory holds from now on
    return plan, checkpoint


def keep_plan(layout: JobDirectory, plan: Plan) -> None:
    """Write the plan, where it is another one than an earlier start's."""
    if _kept(layout.plan, Plan.from_document) != plan:
        write_json(layout.plan, plan.document())


def data_facts(opened: Opened) -> DataFacts:
    """What the plan knows of the data."""
    trainer, examined = opened.trainer, opened.examination
    data = DataFacts(
        rows=examined.rows, fingerprint=examined.fingerprint, group_sizes=examined.group_sizes,
        stream=examined.stream, prepared=bool(trainer.preparation),
    )  # fmt: skip
    if isinstance(trainer, SupervisedTrainer):
        data = dataclasses.replace(data, minimum_rows=trainer.minimum_rows, coupled_rows=trainer.coupled_rows)
    return data


def _kept(path: Path, read: Callable[[Any], Any]) -> Any:
    """What an earlier start wrote; None where there is nothing, or nothing that reads as it should."""
    try:
        return read(read_json(path))
    except (FileNotFoundError, ValueError, TypeError, AttributeError, KeyError):
        return None


def prepare(opened: Opened, plan: Plan, ledger: Ledger, *, verify: bool = True) -> Opened:
    """Put the plan's numbers into the handle and run the preparation phases; ``verify`` as there."""
    torch.set_num_threads(plan.threads)
    run = dataclasses.replace(
        opened.run, settings=plan.resolved(opened.asked), dtype=DTYPES[plan.precision], changed=plan.changed
    )  # fmt: skip
    run_phases(opened.trainer, run, ledger, verify=verify)
    return dataclasses.replace(opened, run=run)


def open_again(start: Start) -> Opened:
    """The job as its rank has planned and prepared it, for a new process that only looks."""
    ledger = Ledger(probe_for(pick_device()), lambda row: None, policy="report")
    opened = open_job(start, ledger=ledger, check=no_check, progress=no_progress)
    return prepare(opened, Plan.from_document(read_json(start.layout.plan)), ledger, verify=False)


def identity_of(opened: Opened, start: Start, plan: Plan) -> dict[str, Any]:
    """What a checkpoint of this start records."""
    return describe_identity(
        plan, fingerprint=opened.examination.fingerprint, weights=start.weights_identity, device=opened.facts
    )


def store_of(layout: JobDirectory, start: Start) -> CheckpointStore:
    """The job's checkpoints."""
    return CheckpointStore(layout.checkpoints, start.read_job().identifier())


def _refuse_ranks(trainer: Trainer, ranks: int) -> None:
    """Only the ordinary loop knows how to share an update, and not when its rows see each other."""
    why = ""
    if not isinstance(trainer, SupervisedTrainer):
        why = "has a loop of its own"
    elif trainer.coupled_rows:
        why = "has a loss whose rows see each other, which is never split"
    if why and ranks > 1:
        raise BadJob(f"{ranks} ranks, and the trainer {trainer.name} {why}", expected="1", setting="--ranks")


def _refuse_to_start_over(store: CheckpointStore, skipped: Sequence[Checkpoint]) -> None:
    """A save that was killed leaves nothing under a checkpoint's name: what is damaged was once whole."""
    damaged = [each for each in skipped if each.problem and each.run in ("", store.run)]
    if damaged:
        told = "; ".join(f"{each.path.name}: {each.problem}" for each in damaged)
        raise InternalError(
            f"no checkpoint of this job is whole: {told}", expected="one to resume from",
            setting=f"{store.directory}: remove it to start over",
        )  # fmt: skip


def _resolve(opened: Opened, start: Start, saved: Plan | None, probe: Callable[[torch.device], str]) -> Plan:
    """The plan of this start; what it wants of the device is tried, and told or refused when it fails."""
    trainer = opened.trainer
    data = data_facts(opened)
    resolve = functools.partial(
        resolve_plan, opened.asked, trainer=trainer.name, trainer_version=trainer.version,
        model=opened.run.model.name, method=opened.run.method, data=data, replicas=start.ranks,
        asked=start.read_job().hyperparameters, parameters=opened.run.model.parameters,
        chosen=_chosen(start, saved), fit=_fit(start, saved),
        compile_times=_compile_times(start, opened),
    )  # fmt: skip
    plan = resolve(device=opened.facts)
    assert opened.run.device is not None
    if plan.settings["optim_8bit"].effective is True and (problem := probe(opened.run.device)):
        plan = resolve(device=dataclasses.replace(opened.facts, eight_bit_problem=problem))
    return plan


def _chosen(start: Start, saved: Plan | None) -> dict[str, Effective]:
    """What was chosen by size and time, now or by the start whose checkpoint is taken up, which stays chosen:
    another card may be larger or faster.
    """
    if saved is None:
        knobs = {name: Effective(**knob) for name, knob in start.fit.get("settings", {}).items()}
    else:
        names = (*CHOSEN_ONCE, *CHOSEN_FOR_A_CARD) if saved.fit.get("card") else CHOSEN_ONCE
        knobs = {name: saved.settings[name] for name in names if name in saved.settings}
    # The fast precision is the device's own to say; fp32 was chosen against it, for memory.
    knobs = {name: knob for name, knob in knobs.items() if name != "mixed_precision" or knob.effective == "no"}
    return {name: knob for name, knob in knobs.items() if knob.requested == "auto"}


def _compile_times(start: Start, opened: Opened) -> CompileTimes | None:
    """What a pilot measured on such a device with such settings."""
    facts = opened.facts
    return (
        Measured(**start.measured).compiling(facts.kind, facts.name, opened.asked) if start.measured else None
    )


def _fit(start: Start, saved: Plan | None) -> Mapping[str, Any]:
    if saved is not None:
        return saved.fit
    return {name: value for name, value in start.fit.items() if name != "settings"}


def _continued(opened: Opened, start: Start, checkpoint: Checkpoint, saved: Plan, fresh: Plan) -> Plan:
    """The saved plan, with what changes no number and what may change taken from this start."""
    identity = identity_of(opened, start, fresh)
    differences = compare_identity(read_document(checkpoint, IDENTITY), identity)
    differences += _random_differences(opened, checkpoint)
    refuse_differences(differences, where=checkpoint.path.name, allowed=start.allow_changes)
    changed = {each.field: each for each in differences}
    if f"{SETTINGS}updates" in changed and fresh.updates <= checkpoint.step:
        raise BadJob(
            f"updates is {fresh.updates}, and {checkpoint.step} have been made", expected="a greater number",
            setting="/hyperparameters/updates",
        )  # fmt: skip
    knobs = {
        name: _knob(knob, saved.settings.get(name), changed.get(SETTINGS + name), checkpoint.step)
        for name, knob in fresh.settings.items()
    }
    records = (*saved.changed, *(each.record(checkpoint.step) for each in differences))
    made = fresh if differences else saved
    return dataclasses.replace(made, settings=knobs, changed=records, reading=saved.reading)


def _random_differences(opened: Opened, checkpoint: Checkpoint) -> list[Difference]:
    """Whether the global generators can be put back; known before anything large is loaded."""
    assert opened.run.device is not None
    saved = load_checkpoint(checkpoint, section=RANDOM)
    values: Any = saved.values.get(RANDOM, {})
    problem = random_problem(saved.section(RANDOM), values, opened.run.device)
    now = "seeded anew by the seed and the update"
    if isinstance(opened.trainer, SupervisedTrainer):
        now += "; the ordinary loop draws by position and does not need them"
    return [Difference(RANDOM, problem, now)] if problem else []


def _knob(fresh: Effective, saved: Effective | None, change: Difference | None, step: int) -> Effective:
    if change is not None:
        why = f"{fresh.why}; changed on resume after update {step}, was {change.saved}"
        return dataclasses.replace(fresh, why=why)
    return fresh if saved is None or saved.effective != fresh.effective else saved


def _handle(
    start: Start, settings: Hyperparameters, row: ModelRow, method: str, device: torch.device, ledger: Ledger,
    check: Callable[[], None], progress: Callable[..., None],
) -> Run:  # fmt: skip
    return Run(
        settings=settings, model=row, method=method, directory=Path(start.directory), cache=Path(start.cache),
        weights={role: Path(path) for role, path in start.weights.items()},
        inputs={name: Path(path) for name, path in start.inputs.items()},
        allow=start.read_job().allowed,
        device=device, dtype=torch.float32, check=check, progress=progress, phase=ledger.phase,
    )  # fmt: skip
