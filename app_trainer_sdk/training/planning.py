"""Owns the program that answers "will it fit?" and tells floors, for processes that have no torch.

``python -m app_trainer_sdk.training.planning``: a request as JSON on standard input, the answer on standard
output. This file must not know how a plan is made or shown.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.descendants import die_with_parent
from app_trainer_sdk.errors import HardwareUnfit, TrainerError
from app_trainer_sdk.floors import FLOOR_CARD, floor_document, floor_job, floors_digest
from app_trainer_sdk.gpus import Card
from app_trainer_sdk.job import Job
from app_trainer_sdk.planning.measured import Measured
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.training.second_process import second_process

if TYPE_CHECKING:
    from app_trainer_sdk.training.planner import Planner


def answer(request: Mapping[str, Any], *, settled: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Plan ``request["job"]`` on each of ``request["cards"]`` for ``request["replicas"]`` ranks.

    With ``request["nearest"]`` only what fits the first of them, where the job as it is did not.
    With ``request["here"]`` the cards are those of this machine, and 8-bit state is tried before it is chosen.
    ``request["measured"]`` is what a pilot measured. Or tell the floors of ``request["trainer"]``, when that is
    asked. ``settled`` is called once all is imported and before anything is rehearsed.
    """
    started = time.perf_counter()
    try:
        if "trainer" in request:
            return floors_of(find_trainer(request["trainer"]))
        job, replicas = Job.model_validate(request["job"]), request["replicas"]
        measured = Measured(**request["measured"]) if request.get("measured") else None
        planner = _planner(job, replicas=replicas, measured=measured)
        _ = planner.size  # the trainer's own imports
        settled()
        if request.get("nearest"):
            return planner.nearest(Card(**request["cards"][0]))
        cards = [Card(**card) for card in request["cards"]]
        plans = [_on(planner, card, alone=len(cards) == 1) for card in cards]
        if request.get("here") and (problem := _state_problem(plans)):
            planner = _planner(job, replicas=replicas, eight_bit_problem=problem, measured=measured)
            plans = [planner.on(card) for card in cards]
        return {**planner.facts(), "cards": plans, "seconds": round(time.perf_counter() - started, 3)}
    except TrainerError as error:
        return {"error": {"code": int(error.code), "message": str(error)}}


def _on(planner: Planner, card: Card, *, alone: bool) -> dict[str, Any]:
    """The plan for a card; one of several that cannot compute what was asked for is told among the others."""
    try:
        return planner.on(card)
    except HardwareUnfit as error:
        if alone:
            raise
        return planner.refused(card, str(error))


def _state_problem(plans: Sequence[Mapping[str, Any]]) -> str:
    """Why 8-bit state, which a plan wants, does not work here; empty when it does or nobody wants it."""
    from app_trainer_sdk.training.device import pick_device
    from app_trainer_sdk.training.optim import eight_bit_problem_apart

    wanted = any(plan["settings"]["optim_8bit"]["effective"] is True for plan in plans)
    return eight_bit_problem_apart(pick_device()) if wanted else ""


def floors_of(trainer: type[Trainer]) -> dict[str, Any]:
    """The least memory of every model and method, and of inference, with its terms."""
    floors = {row.name: model_floors(trainer, row.name) for row in trainer.models}
    return {"digest": floors_digest(trainer), "floors": floors}


def model_floors(trainer: type[Trainer], model: str, methods: Sequence[str] | None = None) -> dict[str, Any]:
    """The floors of one model, by method and for inference; of some methods only when they are named."""
    chosen = trainer.methods if methods is None else methods
    floors = {method: _floor(trainer, model, method) for method in chosen}
    told = _planner(floor_job(trainer, model, trainer.methods[0])).inference(FLOOR_CARD)
    beside = f", beside the phase {told['beside']}" if told["beside"] else ""
    settings = {"pass": f"forward over one longest row{beside}"}
    return {**floors, "inference": floor_document(told["memory"], told["precision"], settings=settings)}


def _floor(trainer: type[Trainer], model: str, method: str) -> dict[str, Any]:
    """The leanest way of all: one row at a time, recomputation, and 8-bit state where it takes less."""
    lean = _planner(floor_job(trainer, model, method)).size.blocks > 0
    ways = [
        _planner(floor_job(trainer, model, method, gradient_checkpointing=lean, optim_8bit=small)).on(
            FLOOR_CARD
        )
        for small in (False, True)
    ]
    best = min(ways, key=lambda way: way["memory"]["needed_bytes"])
    knobs = {name: value for name, value in best["chosen"].items() if name != "mixed_precision"}
    return floor_document(best["memory"], best["precision"], settings=knobs)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read a request, write its answer."""
    gc.disable()  # torch and transformers make a million objects, and looking through them takes a second
    with second_process():
        json.dump(answer(json.load(sys.stdin), settled=_settle), sys.stdout)
    return 0


def _settle() -> None:
    """What the imports made lives as long as the process: it is not looked through again."""
    gc.freeze()
    gc.enable()


def _planner(
    job: Job, *, replicas: int = 1, eight_bit_problem: str = "", measured: Measured | None = None
) -> Planner:
    from app_trainer_sdk.training.planner import Planner  # here, so that torch is imported after main() began

    return Planner(job, replicas=replicas, eight_bit_problem=eight_bit_problem, measured=measured)


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main())
