"""Writes ``docs/reference/hyperparameters.md`` from the settings themselves: ``python docs/make_reference.py``.

A test compares the file with what this prints, so the reference is never behind the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.registry import all_trainers
from app_trainer_sdk.validation import expectation

TARGET = Path(__file__).parent / "reference" / "hyperparameters.md"


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
