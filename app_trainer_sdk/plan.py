"""Owns the plan: every derived number of a run, computed once, by pure functions, with its reason.

Inputs are the settings as asked, facts about the data and facts about the device; nothing here asks a
device, reads a file or imports torch. A saved plan is reused on resume and never resolved again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from app_trainer_sdk.changes import change_lines
from app_trainer_sdk.data_facts import (
    STREAMS,
    DataFacts,
    choose_sampling,
    choose_workers,
    cores_of_a_rank,
    groups_of_batches,
    refuse_impossible_order,
)
from app_trainer_sdk.errors import BadData, BadJob, HardwareUnfit, Problem
from app_trainer_sdk.hyperparameters import Hyperparameters, batch_equation
from app_trainer_sdk.tradeoffs import CompileTimes, choose_compile, choose_eight_bit, trained_parameters
from app_trainer_sdk.values import JSON
from app_trainer_sdk.windows import examples_seen, group_window_sizes, updates_per_epoch

PLAN_SCHEMA = "app.trainer.plan/v1"
FOLLOWS = "follows from global batch = microbatch × accumulation × replicas"


@dataclass(frozen=True)
class DeviceFacts:
    """What a device says of itself.

    Attributes:
        kind: ``cpu`` or ``cuda`` (AMD cards answer to ``cuda`` in torch).
        name: the card or processor.
        bf16: whether bf16 arithmetic is done in hardware.
        cores: processors that this machine's ranks may use together, and ``cores_why`` that many.
        memory_bytes: the card's memory, or 0 on the CPU.
        kernels: the instruction set torch's CPU kernels use.
        shared_memory_bytes: free for what processes share.
        eight_bit_problem: why a step of 8-bit AdamW does not work here; empty when it does or nobody tried.
    """

    kind: str
    name: str
    bf16: bool
    cores: int
    memory_bytes: int = 0
    kernels: str = ""
    eight_bit_problem: str = ""
    cores_why: str = ""
    shared_memory_bytes: int = 0


@dataclass(frozen=True)
class Effective:
    """One knob: what was asked, what it became, why."""

    requested: JSON
    effective: JSON
    why: str


@dataclass(frozen=True)
class Plan:
    """Every number of a run.

    ``settings`` holds each knob, ``changed`` what resumes were allowed to change (field, saved, now, step),
    ``stream`` how the training data resumes when it is a stream; the rest is arithmetic people ask for.
    """

    trainer: str
    trainer_version: str
    model: str
    method: str
    updates: int
    examples_per_update: int
    examples_seen: int
    rows: int | None
    updates_per_epoch: int | None
    replicas: int
    threads: int
    precision: str
    device: str
    batch: str
    settings: Mapping[str, Effective] = field(default_factory=dict)
    changed: Sequence[Mapping[str, JSON]] = ()
    stream: str = ""
    threads_why: str = ""

    def document(self) -> dict[str, Any]:
        """The plan as JSON."""
        knobs = {
            name: {"requested": each.requested, "effective": each.effective, "why": each.why}
            for name, each in self.settings.items()
        }
        facts = {name: value for name, value in vars(self).items() if name != "settings"}
        return {"schema": PLAN_SCHEMA, **facts, "settings": knobs}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The plan a document holds."""
        facts = {name: value for name, value in document.items() if name not in ("schema", "settings")}
        knobs = {name: Effective(**each) for name, each in document["settings"].items()}
        changed = tuple(facts.pop("changed", ()))
        return cls(**facts, settings=knobs, changed=changed)

    def resolved(self, settings: Hyperparameters) -> Hyperparameters:
        """The settings with every ``"auto"`` decided."""
        return settings.model_copy(update={name: each.effective for name, each in self.settings.items()})


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

    Raises:
        BadJob: the batch does not multiply out, or an impossible wish.
        BadData: fewer rows than one global batch.
        HardwareUnfit: a precision or an optimizer the device does not have.
    """
    knobs: dict[str, Effective] = {}
    batch = _batch(settings, replicas, data)
    knobs |= batch
    total = _number(batch["global_batch"])
    refuse_impossible_order(settings, data, replicas)
    knobs["sampling"] = _choose(settings, "sampling", *choose_sampling(data))
    cores, _ = cores_of_a_rank(device.cores, "", replicas)
    workers = choose_workers(data, device.kind, cores, device.shared_memory_bytes)
    knobs["dataloader_workers"] = _choose(settings, "dataloader_workers", *workers)
    groups = groups_of_batches(settings, trainer, data)
    per_epoch = _windows(data, total, groups)
    knobs |= _duration(settings, per_epoch)
    updates = _number(knobs["updates"])
    knobs |= _cadence(settings, updates) | _machine(settings, device)
    knobs["torch_compile"] = _choose(settings, "torch_compile", *choose_compile(compile_times, updates))
    knobs["optim_8bit"] = _eight_bit(settings, device, trained_parameters(method, parameters))
    for name, value in settings.model_dump(mode="json").items():
        if value != "auto":
            why = "asked for" if name in (asked or {}) else "default"
            knobs[name] = Effective(value, knobs[name].effective if name in knobs else value, why)
    micro, steps = _number(knobs["microbatch"]), _number(knobs["gradient_accumulation_steps"])
    threads, why_threads = cores_of_a_rank(device.cores, device.cores_why, replicas)
    return Plan(
        trainer=trainer, trainer_version=trainer_version, model=model, method=method, updates=updates,
        examples_per_update=total, examples_seen=_examples_seen(settings, updates, total, data, groups),
        rows=data.rows, updates_per_epoch=per_epoch, replicas=replicas,
        threads=threads, threads_why=why_threads,
        precision=str(knobs["mixed_precision"].effective), device=f"{device.kind}: {device.name}",
        batch=batch_equation(micro, steps, replicas) + " examples per update",
        settings=dict(sorted(knobs.items())), stream=data.stream,
    )  # fmt: skip


def plan_lines(plan: Plan) -> list[str]:
    """The plan as a person reads it."""
    rows = "" if plan.rows is None else f" of {plan.rows:,} rows ({plan.updates_per_epoch:,} updates a pass)"
    product = plan.updates * plan.examples_per_update
    uneven = "" if product == plan.examples_seen else f"{product:,}, and with short or merged windows "
    seen = f"{plan.updates:,} updates × {plan.examples_per_update:,} = {uneven}{plan.examples_seen:,}"
    lines = [
        f"plan: {plan.trainer} {plan.trainer_version}, {plan.model}, {plan.method}, on {plan.device}",
        f"  {seen} examples seen{rows}",
        f"  microbatch × accumulation × replicas: {plan.batch}",
        f"  threads of a rank: {plan.threads}" + (f" ({plan.threads_why})" if plan.threads_why else ""),
    ]
    if plan.stream:
        lines.append(f"  training data: a stream, resumed {plan.stream}: {STREAMS[plan.stream]}")
    for name, knob in plan.settings.items():
        asked = "" if knob.requested == knob.effective else f" (asked {knob.requested})"
        lines.append(f"  {name:<28} {knob.effective!s:<14}{asked} {knob.why}".rstrip())
    return lines + [f"  {line}" for line in change_lines(plan.changed)]


def _number(knob: Effective) -> int:
    assert isinstance(knob.effective, int)
    return knob.effective


def _batch(settings: Hyperparameters, replicas: int, data: DataFacts) -> dict[str, Effective]:
    """Any two of the three given, the third follows; with fewer, the defaults fill in."""
    micro, why_micro = _microbatch(settings, replicas, data)
    _refuse_too_few(micro, data)
    steps, why_steps = _accumulation(settings, micro * replicas)
    if data.coupled_rows and steps != 1:
        found = f"{steps} ({why_steps})"
        wrong = Problem("/hyperparameters/gradient_accumulation_steps", found, "1", "rows see each other")
        raise BadJob("this trainer's loss cannot be split:", problems=[wrong])
    product = micro * steps * replicas
    total, why_total = product, FOLLOWS
    if settings.global_batch != "auto":
        total, why_total = settings.global_batch, "asked for"
    if total != product:
        found = f"global_batch {total}, yet microbatch × gradient_accumulation_steps × replicas is "
        found += batch_equation(micro, steps, replicas)
        wrong = Problem("/hyperparameters/global_batch", found, "both sides to be equal")
        raise BadJob("the batch does not multiply out:", problems=[wrong])
    return {
        "global_batch": Effective(settings.global_batch, total, why_total),
        "microbatch": Effective(settings.microbatch, micro, why_micro),
        "gradient_accumulation_steps": Effective(settings.gradient_accumulation_steps, steps, why_steps),
    }


def _microbatch(settings: Hyperparameters, replicas: int, data: DataFacts) -> tuple[int, str]:
    if settings.microbatch != "auto":
        return settings.microbatch, "asked for"
    most, total = settings.auto_microbatch, settings.global_batch
    if total == "auto":
        return _default_microbatch(settings, replicas, data)
    if total % replicas:
        found = f"global_batch {total} over {replicas} replicas"
        wrong = Problem("/hyperparameters/global_batch", found, f"a multiple of {replicas}")
        raise BadJob("the batch does not multiply out:", problems=[wrong])
    share = total // replicas
    if data.coupled_rows:
        return share, "the whole batch at once, since its rows see each other"
    if settings.gradient_accumulation_steps != "auto":
        return max(1, share // settings.gradient_accumulation_steps), FOLLOWS
    divisors = [size for size in range(1, share + 1) if share % size == 0 and size >= data.minimum_rows]
    small = [size for size in divisors if size <= most]
    if not small:
        return min(divisors, default=share), f"the smallest divisor of {share} of at least {data.minimum_rows}"
    return max(small), f"the largest divisor of {share} up to the trainer's default of {most}"


def _default_microbatch(settings: Hyperparameters, replicas: int, data: DataFacts) -> tuple[int, str]:
    """The trainer's default, or what is left of it when the rows do not fill one update."""
    most, asked = settings.auto_microbatch, settings.gradient_accumulation_steps
    steps = 1 if asked == "auto" else asked
    if data.rows is None or data.rows >= most * steps * replicas:
        return most, f"the trainer's default of {most}"
    largest = max(1, data.rows // (steps * replicas))
    return largest, f"{data.rows} rows do not fill one update at the trainer's default of {most}"


def _refuse_too_few(micro: int, data: DataFacts) -> None:
    """A trainer with batch norm cannot train on one row: told before anything is computed."""
    if data.rows is not None and data.rows < data.minimum_rows:
        raise BadData(
            f"the training split has {data.rows} rows",
            expected=f"at least {data.minimum_rows}, as the trainer needs",
            setting="the dataset",
        )
    if micro < data.minimum_rows:
        expected = f"at least {data.minimum_rows}, the fewest rows this trainer can train on at once"
        wrong = Problem("/hyperparameters/microbatch", str(micro), expected)
        raise BadJob("the batch is too small:", problems=[wrong])


def _accumulation(settings: Hyperparameters, at_once: int) -> tuple[int, str]:
    if settings.gradient_accumulation_steps != "auto":
        return settings.gradient_accumulation_steps, "asked for"
    if settings.global_batch == "auto":
        return 1, "no split needed"
    return max(1, settings.global_batch // at_once), FOLLOWS


def _windows(data: DataFacts, total: int, groups: Sequence[int]) -> int | None:
    if data.rows is None:
        return None
    if data.rows < total:
        raise BadData(
            f"the training split has {data.rows} rows and one update takes {total}",
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


def _cadence(settings: Hyperparameters, updates: int) -> dict[str, Effective]:
    choices = {
        "warmup_updates": (-(-updates * 3 // 100), "3 % of the updates"),
        "evaluate_every": (-(-updates // 4), "four times in the run"),
        "checkpoint_every": (-(-updates // 10), "ten times in the run"),
    }
    return {name: _choose(settings, name, *choice) for name, choice in choices.items()}


def _machine(settings: Hyperparameters, device: DeviceFacts) -> dict[str, Effective]:
    knobs = {"mixed_precision": _precision(settings, device)}
    choices = {
        "gradient_checkpointing": (False, "recomputing costs time; ask for it when memory is short"),
    }
    return knobs | {name: _choose(settings, name, *choice) for name, choice in choices.items()}


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
    asked, problem = settings.optim_8bit, device.eight_bit_problem
    if asked is True and problem:
        raise HardwareUnfit(
            f"a step of 8-bit AdamW on {device.name} does not work: {problem}",
            expected="bitsandbytes and a device it supports",
            setting="/hyperparameters/optim_8bit to 'auto' or false",
        )
    choice = choose_eight_bit(
        optimizer=settings.optimizer, trained=trained, memory_bytes=device.memory_bytes, problem=problem
    )
    return _choose(settings, "optim_8bit", *choice)


def _choose(settings: Hyperparameters, name: str, value: JSON, why: str) -> Effective:
    asked = getattr(settings, name)
    return Effective(asked, value, why) if asked == "auto" else Effective(asked, asked, "asked for")


def _examples_seen(
    settings: Hyperparameters, updates: int, total: int, data: DataFacts, groups: Sequence[int]
) -> int:
    if data.rows is None:
        return updates * total
    return examples_seen(updates, data.rows, total, data.minimum_rows, groups=groups, seed=settings.seed)


if __name__ == "__main__":  # the command by the module's own name, as every other
    from app_trainer_sdk.plan_command import main

    raise SystemExit(main())
