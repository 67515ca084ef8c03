"""Owns the ``describe`` document as a table for people: plain text, one line for each method of each model.

It knows the document alone, so that a stored or downloaded one can be shown too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HEADINGS = ("trainer", "model", "parameters", "method", "floor", "evidence", "defaults of note")
RIGHT_ALIGNED = frozenset({"parameters", "floor"})


def render_table(document: Mapping[str, Any]) -> str:
    """Lines of equal columns, with a line under the headings."""
    rows = [row for trainer in document["trainers"] for row in _trainer_rows(trainer)]
    if not rows:
        return "No trainer is installed.\n"
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    lines = [HEADINGS, ["-" * width for width in widths], *rows]
    return "".join(_line(cells, widths) + "\n" for cells in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = (
        cell.rjust(width) if heading in RIGHT_ALIGNED else cell.ljust(width)
        for heading, cell, width in zip(HEADINGS, cells, widths, strict=True)
    )
    return "  ".join(aligned).rstrip()


def _trainer_rows(trainer: Mapping[str, Any]) -> Iterator[list[str]]:
    general = {name: each.get("default") for name, each in trainer["hyperparameters"]["properties"].items()}
    shown_trainer = trainer["name"]
    for model in trainer["models"]:
        shown_model, parameters = model["name"], _count(model["parameters"])
        for method, floor in model["floors"].items():
            defaults = model["methods"].get(method, {}).get("defaults", {})
            size = "unknown" if floor["gib"] is None else f"{floor['gib']:.1f} GiB"
            evidence = floor["grade"] or "none"
            yield [shown_trainer, shown_model, parameters, method, size, evidence, _of_note(defaults, general)]
            shown_trainer = shown_model = parameters = ""


def _of_note(defaults: Mapping[str, Any], general: Mapping[str, Any]) -> str:
    """The learning rate, and what this model's defaults change of the trainer's general ones."""
    noted = {
        name: value for name, value in defaults.items() if name == "learning_rate" or value != general.get(name)
    }
    return ", ".join(f"{name} {value}" for name, value in noted.items())


def _count(number: int) -> str:
    """A count as people say it: ``134.5 M``."""
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return str(number)
