"""Writes the generated pages of ``docs/reference``, settings and events: ``python docs/make_reference.py``.

A test compares the files with what this prints, so the reference is never behind the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.registry import all_trainers
from app_trainer_sdk.schemas.event import (
    TYPES,
    Artifact,
    Checkpoint,
    Envelope,
    Failure,
    Outputs,
    Performance,
    Phase,
    Progress,
    Spread,
)
from app_trainer_sdk.validation import expectation

TARGET = Path(__file__).parent / "reference" / "hyperparameters.md"
EVENTS = Path(__file__).parent / "reference" / "events.md"


def reference() -> str:
    """The whole page."""
    shared = Hyperparameters.model_json_schema()
    lines = [
        "# Hyperparameters",
        "",
        "Generated from the code (`python docs/make_reference.py`). "
        "`auto` means that the plan decides and says why.",
        "",
        "## Every trainer",
        "",
        *_table(shared, shared["properties"]),
    ]
    for name, trainer in all_trainers().items():
        schema = trainer.hyperparameters_class.model_json_schema()
        own = {key: value for key, value in schema["properties"].items() if key not in shared["properties"]}
        lines += ["", f"## `{name}`", "", *_table(schema, own), "", *_defaults(trainer.defaults)]
    return "\n".join(lines).rstrip() + "\n"


def events_reference() -> str:
    """The page of event types."""
    lines = [
        "# Events",
        "",
        "Generated from the code (`python docs/make_reference.py`); "
        "`app-trainer schema event` prints the JSON Schema. How they travel: [callbacks](../callbacks.md).",
        "",
        "To fit into 4,096 bytes an event may lose any key that is not of the envelope.",
        "",
        "## Envelope",
        "",
        *_keys(Envelope, without=set()),
        "",
        "## Types",
    ]
    for each in TYPES:
        (name,) = get_args(each.model_fields["type"].annotation)
        lines += ["", f"### `{name}`", "", str(each.__doc__), ""]
        lines += _keys(each, without={*Envelope.model_fields, "type"})
    lines += ["", "## Parts"]
    for part in (Phase, Progress, Checkpoint, Artifact, Spread, Performance, Outputs, Failure):
        lines += ["", f"### {part.__name__}", "", str(part.__doc__), "", *_keys(part, without=set())]
    return "\n".join(lines).rstrip() + "\n"


def _keys(model: type[BaseModel], without: set[str]) -> Iterator[str]:
    schema = model.model_json_schema()
    yield "| key | value | meaning |"
    yield "|---|---|---|"
    for name, field in schema["properties"].items():
        if name not in without:
            allowed = expectation(field, schema).replace("|", "\\|")
            yield f"| `{name}` | {allowed} | {field.get('description', '')} |"


def _table(schema: Mapping[str, Any], fields: Mapping[str, Any]) -> Iterator[str]:
    yield "| setting | default | unit | allowed | meaning |"
    yield "|---|---|---|---|---|"
    for name, field in fields.items():
        default = field.get("default")
        allowed = expectation(field, schema).replace("|", "\\|")
        yield f"| `{name}` | `{default}` | {field.get('unit', '')} | {allowed} | {field['description']} |"


def _defaults(defaults: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for method, values in defaults.items():
        told = ", ".join(f"`{name}` {value}" for name, value in values.items())
        yield f"* method `{method}`: {told}"


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
    EVENTS.write_text(events_reference(), encoding="utf-8")
