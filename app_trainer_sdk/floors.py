"""Owns the command ``floors``: the least GPU memory at which the methods of a trainer's models run, computed.

Its output is data that a trainer image commits beside its catalog; ``describe`` shows it. What the numbers
depend on is digested with them, so that a test can tell when they are out of date. Torch-free: the numbers are
computed by the planning process, and this file must not know how.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk import __version__
from app_trainer_sdk.arguments import Parser, write_document
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.contract_check import merged_defaults
from app_trainer_sdk.errors import TrainerError
from app_trainer_sdk.gpus import Card
from app_trainer_sdk.job import Job
from app_trainer_sdk.quantities import GIB, MIB

SCHEMA = "app.trainer.floors/v1"
#: Raise it when floors are computed in another way.
METHOD = 1
#: No card in particular: large enough for anything, with the fixed costs of a large one.
FLOOR_CARD = Card("any", "any card with bf16", 1 << 50, "", True, 650 * MIB, 64 * MIB)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compute the floors of a trainer and print them, or write them to a file."""
    from app_trainer_sdk.planning.process import ask

    description = "Compute the least GPU memory at which a trainer's models run."
    parser = Parser(prog="app-trainer floors", description=description)
    parser.add_argument("trainer", help="a trainer's name or package.module:Class")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write them there instead of printing them")
    chosen = parser.parse_args(arguments)
    try:
        found = {"schema": SCHEMA, **ask({"trainer": chosen.trainer})}
        if chosen.write:
            write_document(chosen.write, found, "--write")
    except TrainerError as error:
        sys.stderr.write(f"floors: {error}\n")
        return int(error.code)
    if not chosen.write:
        sys.stdout.write(json.dumps(found, indent=2, allow_nan=False) + "\n")
    return 0


def floors_digest(trainer: type[Trainer]) -> str:
    """Digest of what floors depend on besides the code: models, their defaults, the fixed costs."""
    parts = {
        "method": METHOD,
        "card": [FLOOR_CARD.context_bytes, FLOOR_CARD.library_bytes, FLOOR_CARD.headroom(GIB)],
        "models": {
            row.name: [
                row.architecture,
                {method: _defaults(trainer, row, method) for method in trainer.methods},
            ]
            for row in trainer.models
        },
    }
    canonical = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=list)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def floor_job(trainer: type[Trainer], model: str, method: str, **hyperparameters: Any) -> Job:
    """A job that says nothing but how lean it is."""
    inputs = {name: {"url": "/nowhere"} for name, each in trainer.inputs.items() if each.required}
    lean = {"global_batch": 1, "microbatch": 1, **hyperparameters}
    if trainer.minimum_rows > 1:  # type: ignore[attr-defined]
        lean |= {"global_batch": trainer.minimum_rows, "microbatch": trainer.minimum_rows}  # type: ignore[attr-defined]
    return Job.model_validate(
        {"trainer": f"{trainer.__module__}:{trainer.__qualname__}", "model": model, "method": method,
         "inputs": inputs, "hyperparameters": lean}
    )  # fmt: skip


def floor_document(memory: Mapping[str, int], precision: str, *, settings: Mapping[str, Any]) -> dict[str, Any]:
    """A floor with its evidence, as the catalog reads it."""
    declared = ("library_bytes", "context_bytes", "headroom_bytes")
    return {
        "gib": math.ceil(memory["needed_bytes"] / GIB * 100) / 100,
        "grade": "predicted",
        "evidence": {
            "sdk_version": __version__, "kernels": "CPU", "precision": precision, **settings,
            "predicted_bytes": memory["peak_bytes"] + memory["rounding_bytes"],
            "declared_bytes": sum(memory[term] for term in declared),
        },
    }  # fmt: skip


def _defaults(trainer: type[Trainer], row: Any, method: str) -> dict[str, Any]:
    settings = trainer.hyperparameters_class.model_validate(dict(merged_defaults(trainer, row, method)))
    return settings.model_dump(mode="json")


if __name__ == "__main__":
    sys.exit(main())
