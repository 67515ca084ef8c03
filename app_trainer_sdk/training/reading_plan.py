"""Owns the plan's word on who reads: measured at a first start, and kept by all that follow.

It is decided before the phases where there are none, and after them where the training data is what they make.
This file must not know how reading is measured, nor the rule that turns it into a number of processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.data_facts import cores_of_a_rank
from app_trainer_sdk.files import read_json
from app_trainer_sdk.handle import Run
from app_trainer_sdk.plan import Effective, Plan
from app_trainer_sdk.planning.measured import Measured
from app_trainer_sdk.planning.workers import Demand, Reading, choose_workers
from app_trainer_sdk.start import Start
from app_trainer_sdk.training.device import DTYPES
from app_trainer_sdk.training.opening import Opened, data_facts, keep_plan
from app_trainer_sdk.training.reading_time import measure_reading

KNOB = "dataloader_workers"
Measure = Callable[[SupervisedTrainer, Run], Reading]


def settle_reading(
    opened: Opened,
    plan: Plan,
    start: Start,
    *,
    resumed: bool,
    rank: int = 0,
    measure: Measure = measure_reading,
) -> Plan:
    """The plan with ``dataloader_workers`` decided by what reading takes; it is written again when it changes.

    Args:
        opened: the job; its phases have been run, or it has none.
        plan: all other numbers.
        start: this start.
        resumed: whether there is a checkpoint, whose plan holds what was measured; nothing is measured again.
        rank: rank 0 measures, and the others read what it wrote.
        measure: tells what reading takes.
    """
    trainer = opened.trainer
    if not isinstance(trainer, SupervisedTrainer) or plan.stream or opened.asked.dataloader_workers != "auto":
        return plan
    kept = plan if resumed else Plan.from_document(read_json(start.layout.plan)) if rank else None
    if kept is None:
        run = dataclasses.replace(
            opened.run, settings=plan.resolved(opened.asked), dtype=DTYPES[plan.precision]
        )  # fmt: skip
        reading = measure(trainer, run)
    elif kept.reading:
        reading = Reading.from_document(kept.reading)
    else:
        return plan  # of a start that asked for a number, or measured nothing
    plan = _with(opened, plan, start, reading)
    if rank == 0:
        keep_plan(start.layout, plan)
    return plan


def _with(opened: Opened, plan: Plan, start: Start, reading: Reading) -> Plan:
    cores, _ = cores_of_a_rank(opened.facts.cores, "", start.ranks)
    workers, why = choose_workers(
        data_facts(opened), opened.facts, cores=cores, ranks=start.ranks, reading=reading,
        demand=_demand(opened, plan, start),
    )  # fmt: skip
    knobs = {**plan.settings, KNOB: Effective("auto", workers, why)}
    return dataclasses.replace(plan, settings=knobs, reading=reading.document())


def _demand(opened: Opened, plan: Plan, start: Start) -> Demand:
    settings = plan.resolved(opened.asked)
    assert isinstance(settings.microbatch, int)
    known = None
    if start.measured:
        facts = opened.facts
        known = Measured(**start.measured).computing(facts.kind, facts.name, opened.asked, start.ranks)
    seconds, source = known or (None, "")
    rows = max(settings.microbatch, -(-plan.examples_per_update // plan.replicas))
    return Demand(settings.microbatch, rows, seconds or None, source)
