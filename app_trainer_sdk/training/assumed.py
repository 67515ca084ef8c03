"""Owns the runs that a planner assumes on cards which are not here: their plan, and the run to rehearse.

It must not know what a run will hold, nor which way is chosen.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from app_trainer_sdk.choice import Candidate
from app_trainer_sdk.contract import SupervisedTrainer
from app_trainer_sdk.data_facts import DataFacts
from app_trainer_sdk.gpus import Card
from app_trainer_sdk.handle import Run
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.job import Job, check_job
from app_trainer_sdk.plan import DeviceFacts, Plan
from app_trainer_sdk.planning.measured import Measured
from app_trainer_sdk.planning.resolve import resolve_plan
from app_trainer_sdk.training.device import DTYPES

#: A run's length moves no memory; a plan without data assumes one.
UPDATES = 1000
#: Processors for each rank, and shared memory, that a rented machine is assumed to have.
CORES, SHARED_BYTES = 8, 16 << 30


class AssumedRuns:
    """Runs of one job.

    Args:
        job: the job, valid by itself.
        trainer: its trainer.
        replicas: data-parallel ranks, one card each.
        measured: what a pilot of the job measured, if there was one.
        eight_bit_problem: why 8-bit state cannot be had; empty while nothing is known against it.

    Attributes:
        asked: the job's hyperparameters, defaults merged.

    Raises:
        BadJob: the job asks what its trainer does not have.
    """

    def __init__(
        self, job: Job, trainer: SupervisedTrainer, *, replicas: int = 1, measured: Measured | None = None,
        eight_bit_problem: str = "",
    ) -> None:  # fmt: skip
        self.asked, self._row, self._method = check_job(job, type(trainer))
        self._said = job.hyperparameters
        self._trainer = trainer
        self._replicas = replicas
        self._measured = measured
        self._eight_bit_problem = eight_bit_problem

    def plan(self, card: Card, settings: Hyperparameters) -> Plan:
        """The plan of a run on a card, as a machine with it would resolve it."""
        device = DeviceFacts(
            "cuda", card.title, bf16=card.bf16, cores=CORES * self._replicas, memory_bytes=card.memory_bytes,
            cores_why=f"{CORES} processors for each rank, assumed", shared_memory_bytes=SHARED_BYTES,
            eight_bit_problem=self._eight_bit_problem,
        )  # fmt: skip
        measured, trainer = self._measured, self._trainer
        updates = (measured.length(settings) if measured else None) or UPDATES
        length = {"updates": updates, "epochs": "auto"} if settings.updates == "auto" else {}
        return resolve_plan(
            settings.model_copy(update=length), trainer=trainer.name, trainer_version=trainer.version,
            model=self._row.name, method=self._method, device=device, replicas=self._replicas,
            data=DataFacts(None, minimum_rows=trainer.minimum_rows, coupled_rows=trainer.coupled_rows),
            asked=self._said, parameters=self._row.parameters,
            compile_times=measured.compiling("cuda", card.title, settings) if measured else None,
        )  # fmt: skip

    def run(self, plan: Plan, candidate: Candidate | None = None) -> Run:
        """A run without weights and data, with the knobs of a candidate where one is given."""
        settings = plan.resolved(self.asked)
        if candidate is not None:
            settings = settings.model_copy(update=candidate.knobs())
        precision = plan.precision if candidate is None else candidate.mixed_precision
        nowhere = Path(tempfile.gettempdir())
        return Run(
            settings=settings, model=self._row, method=self._method, directory=nowhere, cache=nowhere,
            device=torch.device("cpu"), dtype=DTYPES[precision],
        )  # fmt: skip
