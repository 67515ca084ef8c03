"""Owns what a container says it offers: the document behind ``GET /api/training/models``.

The document is a function of the installed code: no clock, no network, no device, equal bytes on every
machine. Keys stand in a fixed order, the order of :mod:`app_trainer_sdk.describe_schema`; trainers are sorted
by name, models, methods and settings keep the order their author wrote, since people read them in it.

This file must not import torch. It starts in about the time that pydantic needs: nothing heavy is imported
before :func:`main` knows what is asked.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app_trainer_sdk import __version__

if TYPE_CHECKING:
    from app_trainer_sdk.catalog import Floor, ModelRow, Requirements, WeightSource
    from app_trainer_sdk.contract import Trainer

SCHEMA = "app.trainer.describe/v1"
JSON_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"

#: What the SDK does for every trainer, in order, before and after the trainer's own preparation.
PHASES_BEFORE = {
    "inputs": "Fetch the job's inputs and base weights.",
    "examine": "Read the index of the data and refuse what cannot train.",
}
PREPARATION = "Prepare files from the inputs; skipped when the job does not need it or has done it."
PHASES_AFTER = {
    "load": "Build the model, or rebuild it from the newest checkpoint.",
    "train": "Make updates and save checkpoints.",
    "evaluate": "Measure the held-out split, now and then during training and at its end.",
    "export": "Write the artifacts from a checkpoint.",
    "replay": "Load the artifact in a new process and ask it the control inputs.",
}


def describe_document(trainers: Iterable[type[Trainer]]) -> dict[str, Any]:
    """What ``trainers`` offer, as JSON values; its shape is :mod:`app_trainer_sdk.describe_schema`."""
    return {
        "schema": SCHEMA,
        "sdk_version": __version__,
        "trainers": [_trainer(each) for each in sorted(trainers, key=lambda trainer: trainer.name)],
    }


def render(document: Mapping[str, Any]) -> str:
    """The document as text: equal documents give equal bytes, in any locale."""
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the document, its table or its schema; the exit code."""
    from app_trainer_sdk.errors import TrainerError

    try:
        sys.stdout.write(_answer(**_arguments(sys.argv[1:] if argv is None else argv)))
    except TrainerError as error:
        sys.stderr.write(f"describe: {error}\n")
        return int(error.code)
    return 0


def _answer(*, trainer: str | None = None, table: bool = False, schema: bool = False) -> str:
    if schema:
        from app_trainer_sdk.describe_schema import document_schema

        return render(document_schema())
    from app_trainer_sdk.registry import all_trainers, find_trainer

    document = describe_document([find_trainer(trainer)] if trainer else all_trainers().values())
    if table:
        from app_trainer_sdk.describe_table import render_table

        return render_table(document)
    return render(document)


def _arguments(argv: Sequence[str]) -> dict[str, Any]:
    if not argv:
        return {}  # what services ask, without the 3 ms that argparse takes
    from app_trainer_sdk.arguments import Parser

    parser = Parser(
        prog="app-trainer describe",
        description="Print what the installed trainers offer, as JSON. Neither a GPU nor torch is needed.",
    )
    parser.add_argument(
        "trainer", nargs="?", help="a trainer's name or package.module:Class; all when left out"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--table", action="store_true", help="print a table for people")
    form.add_argument("--schema", action="store_true", help="print the JSON Schema of the document")
    return vars(parser.parse_args(argv))


def _trainer(trainer: type[Trainer]) -> dict[str, Any]:
    return {
        "name": trainer.name,
        "version": trainer.version,
        "methods": list(trainer.methods),
        "inputs": {
            name: {"description": each.description, "required": each.required}
            for name, each in trainer.inputs.items()
        },
        "phases": _phases(trainer.preparation),
        "artifacts": {method: list(trainer.artifacts[method]) for method in trainer.methods},
        "requirements": _requirements(trainer.requirements),
        "hyperparameters": {
            "$schema": JSON_SCHEMA_DIALECT,
            **trainer.hyperparameters_class.model_json_schema(),
        },
        "models": [_model(trainer, row) for row in trainer.models],
    }


def _phases(preparation: Sequence[str]) -> list[dict[str, str]]:
    def rows(kind: str, phases: Mapping[str, str]) -> list[dict[str, str]]:
        return [{"name": name, "kind": kind, "description": does} for name, does in phases.items()]

    own = dict.fromkeys(preparation, PREPARATION)
    return [*rows("built_in", PHASES_BEFORE), *rows("preparation", own), *rows("built_in", PHASES_AFTER)]


def _requirements(needs: Requirements) -> dict[str, Any]:
    """Null where nobody stated a need: zero would read as "none is enough"."""
    return {
        "host_memory_gib": needs.host_memory_gib or None,
        "disk_gib": needs.disk_gib or None,
        "shared_memory_mib": needs.shared_memory_mib or None,
        "compute_capability": needs.compute_capability or None,
        "driver": needs.driver or None,
    }


def _model(trainer: type[Trainer], row: ModelRow) -> dict[str, Any]:
    sizes = [source.size_bytes for source in row.weights.values()]
    return {
        "name": row.name,
        "title": row.title,
        "parameters": row.parameters,
        "licence": row.licence or None,
        "weights": {role: _weights(source) for role, source in row.weights.items()},
        "weights_bytes": sum(sizes) if all(sizes) else None,
        "methods": {method: {"defaults": _defaults(trainer, row, method)} for method in trainer.methods},
        "floors": {name: _floor(row.floors.get(name)) for name in [*trainer.methods, "inference"]},
    }


def _weights(source: WeightSource) -> dict[str, Any]:
    """Where one set of weights comes from, in the order the sources are tried."""
    places: list[dict[str, str | None]] = []
    if source.package:
        package = {"kind": "package", "package": source.package, "file": source.file or None}
        places.append({**package, "sha256": source.sha256 or None})
    if source.hub:
        places.append({"kind": "hub", "repository": source.hub})
    return {"revision": source.revision, "size_bytes": source.size_bytes or None, "sources": places}


def _defaults(trainer: type[Trainer], row: ModelRow, method: str) -> dict[str, Any]:
    """Every setting a silent job gets: the class's default, the trainer's over it, the model's over both."""
    from app_trainer_sdk.contract_check import merged_defaults

    settings = trainer.hyperparameters_class.model_validate(dict(merged_defaults(trainer, row, method)))
    return settings.model_dump(mode="json")


def _floor(floor: Floor | None) -> dict[str, Any]:
    """A floor that shows no evidence is somebody's word, whatever grade it claims."""
    if floor is None:
        return {"gib": None, "grade": None, "evidence": {}}
    grade = floor.grade if floor.evidence else "declared"
    return {"gib": floor.gib, "grade": grade, "evidence": dict(floor.evidence)}


if __name__ == "__main__":
    # One short answer: nothing built here dies before the process does, so the collector has nothing to find,
    # and nothing of it need be taken apart at the end.
    gc.disable()
    # For plugins, which change no document, pydantic would read the entry points of every distribution.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
