"""Owns ``pilot.md``: one page that says go or no-go, what the run would take, and which knob to turn.

It reads the pilot's document, computes nothing new, and must not know how it was measured.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from app_trainer_sdk.quantities import MIB, seconds_text
from app_trainer_sdk.tradeoffs import CompileTimes, choose_compile


def pilot_page(document: Mapping[str, Any]) -> str:
    """The page."""
    sections = (_head, _cost, _phases, _restore, _mechanics, _data)
    return "\n".join(line for section in sections for line in section(document)).rstrip() + "\n"


def _head(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {document['job_id']}: {'go' if document['go'] else 'no-go'}"
    yield ""
    run = document["run"]
    yield f"{run['trainer']} {run['trainer_version']}, {run['model']}, {run['method']}, on {run['device']}"
    yield f"with {run['batch']}, {run['updates']:,} updates."
    yield ""
    for reason in document["reasons"]:
        yield f"* **{reason}**"
    for advice in document["advice"]:
        yield f"* turn: {advice}"
    if document["reasons"] or document["advice"]:
        yield ""


def _cost(document: Mapping[str, Any]) -> Iterator[str]:
    updates = document["updates"]
    yield "## What it would take"
    yield ""
    yield (
        f"An update takes {updates['seconds']:.3g} s (median of {updates['measured']} on the data; "
        f"{updates['longest_seconds']:.3g} s on the longest rows). All of them together trained "
        f"{updates['examples_per_second']:.3g} examples a second; {updates['data_seconds']:.2g} s of it waits "
        "for data."
    )
    if updates.get("communication_seconds") is not None:
        yield f"Summing the gradients of all ranks takes {updates['communication_seconds']:.2g} s by itself."
    yield ""
    yield "| part | seconds |"
    yield "|---|---|"
    for name, seconds in document["estimate"].items():
        yield f"| {name} | {seconds:,.1f} |"
    yield ""
    yield f"The whole run, without downloads: about {seconds_text(document['estimate']['total'])}."
    yield ""
    yield from _compile(document)


def _phases(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## Every operation once"
    yield ""
    yield "Memory in MiB, after each of them; the peak within."
    yield ""
    yield "| rank | phase | seconds | allocated | reserved | peak | driver | resident | verdict |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in document["phases"]:
        after = row["after"] or {}
        memory = (after.get("allocated", 0), after.get("reserved", 0), row["peak"], after.get("driver", 0))
        cells = [row.get("rank", 0), row["phase"], f"{row['seconds']:.1f}"]
        cells += [_mib(value) for value in (*memory, after.get("resident", 0))]
        verdict = (row["verdict"] + (", reused" if row["reused"] else "")).replace("|", "\\|")
        yield "| " + " | ".join(map(str, cells)) + f" | {verdict} |"
    yield ""
    predicted = document.get("predicted")
    if predicted and "failed" in predicted:
        yield f"No prediction: {predicted['failed']}"
        yield ""
    elif predicted:
        yield (
            f"Predicted peak of an update: {_mib(predicted['rehearsed_bytes'])} MiB ({predicted['grade']}); "
            f"measured {_mib(predicted['measured_bytes'])} MiB, {predicted['ratio']:.2f} times that. "
            "The next plan of this job on a card uses it where this was measured on one."
        )
        yield ""


def _restore(document: Mapping[str, Any]) -> Iterator[str]:
    checkpoint, restore = document["checkpoint"], document["restore"]
    yield "## Saved and restored"
    yield ""
    yield (
        f"A checkpoint has {_mib(checkpoint['bytes'])} MiB; training waits "
        f"{checkpoint['stall_seconds']:.2g} s for it, it is on disk after {checkpoint['write_seconds']:.2g} s."
    )
    same = "bit-equal" if not restore["different"] else f"{len(restore['different'])} of them differ"
    yield f"In a new process {restore['tensors']} tensors came back, {same}; evaluation of the longest batch:"
    yield f"{_metrics(restore['evaluation_here'])} before, {_metrics(restore['evaluation_there'])} after"
    yield f"(tolerance {restore['tolerance']:g})."
    yield ""


def _mechanics(document: Mapping[str, Any]) -> Iterator[str]:
    mechanics = document.get("mechanics")
    if not mechanics:
        return
    yield "## Mechanics, not generalisation"
    yield ""
    losses = [_metrics({"loss": mechanics[name]}) for name in ("first", "last")]
    yield f"{mechanics['rows']} rows trained on {mechanics['updates']} times: {losses[0]}, then {losses[1]}"
    yield f"(at most {mechanics['factor']:.0%} of the first was asked for)."
    yield ""


def _data(document: Mapping[str, Any]) -> Iterator[str]:
    if document["data"]:
        yield "## Data"
        yield ""
        for name, value in document["data"].items():
            yield f"* {name}: {json.dumps(value, ensure_ascii=False)}"
        yield ""
    if document["shown"]:
        yield "## Rows as they are trained on"
        yield ""
        for row in document["shown"]:
            yield f"* `{json.dumps(row, ensure_ascii=False)[:600]}`"
        yield ""


def _compile(document: Mapping[str, Any]) -> Iterator[str]:
    told = document.get("compile")
    if not told:
        return
    if "failed" in told:
        yield f"Compiling failed: {told['failed']}"
    else:
        _, why = choose_compile(CompileTimes(**told, source="this pilot"), document["run"]["updates"])
        yield f"Compiling: {why}."
    yield ""


def _mib(count: int) -> str:
    """MiB with three digits at least: a toy's memory is no zero."""
    value = count / MIB
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _metrics(values: Mapping[str, float | None]) -> str:
    told = {name: "not finite" if value is None else f"{value:.6g}" for name, value in values.items()}
    return ", ".join(f"{name} {value}" for name, value in told.items())
