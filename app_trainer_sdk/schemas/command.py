"""Owns the command ``app-trainer schema``: which document's JSON Schema (2020-12) is printed.

It must not know what a document says.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from app_trainer_sdk.arguments import Parser
from app_trainer_sdk.describe import render

#: By document, the module and the function that know its schema.
DOCUMENTS = {
    "job": ("schemas.job", "job_schema"),
    "describe": ("describe_schema", "document_schema"),
    "plan": ("plan_schema", "document_schema"),
    "event": ("schemas.event", "event_schema"),
    "result": ("schemas.result", "result_schema"),
    "manifest": ("manifest.document", "manifest_schema"),
}


def schema_of(name: str) -> dict[str, Any]:
    """The JSON Schema of a document."""
    module, function = DOCUMENTS[name]
    schema: dict[str, Any] = getattr(import_module(f"app_trainer_sdk.{module}"), function)()
    return schema


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one schema, or all of them by name."""
    parser = Parser(
        prog="app-trainer schema",
        description="Print the JSON Schema of a published document, or of all by name.",
    )  # fmt: skip
    parser.add_argument("document", nargs="?", choices=DOCUMENTS)
    name = parser.parse_args(arguments).document
    sys.stdout.write(render(schema_of(name) if name else {each: schema_of(each) for each in DOCUMENTS}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
