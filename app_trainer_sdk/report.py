"""Owns ``report.md``: how a job went, for a person.

It reads files of the job's directory, computes nothing new, and must not know how they were made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from app_trainer_sdk.changes import change_lines
from app_trainer_sdk.console import halved_text
from app_trainer_sdk.data_wait import data_wait
from app_trainer_sdk.files import read_lines, write_atomic
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.quantities import MIB, seconds_text

#: Seconds below which a part of the time is left out.
LEAST_TOLD = 0.05


def write_report(layout: JobDirectory, result: Mapping[str, Any]) -> None:
    """Write ``report.md`` beside ``result.json``."""
    sections = [_head, _changes, _training, _time, _optimizer, _evaluations, _memory, _outputs, _comparison]
    lines = [line for section in sections for line in section(layout, result)]
    write_atomic(layout.report, ("\n".join(lines).rstrip() + "\n").encode())


def _head(layout: JobDirectory, result: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {result['job_id']}: {result['status']}"
    yield ""
    yield f"Exit code {result['exit_code']} ({result['name']}), attempt {result['attempt']}."
    failure = result.get("failure")
    if failure:
        yield ""
        yield f"**{failure['message']}**"
        yield ""
        phase = failure["phase"] or "unknown"
        yield f"Phase {phase}; origin {failure['origin']}; another try: {failure['retry']}."
    yield ""


def _changes(layout: JobDirectory, result: Mapping[str, Any]) -> Iterator[str]:
    changed = result.get("changed") or ()
    if changed:
        yield "## Changed on the way"
        yield ""
        yield "Not what one run with these settings would have made:"
        yield ""
        yield from (f"* {line}" for line in change_lines(changed))
        yield ""


def _training(layout: JobDirectory, result: Mapping[str, Any]) -> Iterator[str]:
    lines = read_lines(layout.metrics)
    made = [line for line in lines if line["applied"]]
    if not made:
        return
    yield "## Training"
    yield ""
    yield f"* updates: {made[-1]['step']}, loss {_number(made[0]['loss'])} → {_number(made[-1]['loss'])}"
    examples, units = (sum(line[name] for line in made) for name in ("examples", "units"))
    yield f"* examples: {examples:,}, units: {units:,.0f}"
    yield from _waiting(lines)
    ending = result.get("training") or {}
    if ending.get("ended_early"):
        yield f"* ended early: {ending['ended_early']}"
    if "exported" in ending:
        yield f"* exported: the checkpoint of update {ending['exported_step']}, {ending['exported']}"
    if result.get("compiled_graphs"):
        yield f"* graphs compiled in this attempt: {result['compiled_graphs']}"
    stream = result.get("stream") or {}
    for update in stream.get("not_exact_after", ()):
        yield f"* data order not exact after update {update}: the stream could not go on where it was"
    for line in lines:
        for tried in line.get("out_of_memory", ()):
            where = f"* out of memory at update {line['step']}"
            yield f"{where}: {halved_text(tried)}; {_one_line(tried['error'])}"
        if not line["applied"]:
            names = ", ".join(line.get("nonfinite", []))
            yield f"* not applied after update {line['step']}: {line.get('why', '')} {names}".rstrip()
    yield ""


def _waiting(lines: list[Any]) -> Iterator[str]:
    wait = data_wait(lines)
    assert wait is not None
    share = f"{100 * wait['share']:.1f} %"
    yield f"* time in updates: {seconds_text(wait['seconds'])}, waiting for data {share}"
    parts = wait.get("parts", {})
    told = [f"{name} {seconds:.1f} s" for name, seconds in parts.items() if seconds >= LEAST_TOLD]
    if told:
        yield f"* of that wait: {', '.join(told)}; most is {wait['most']}"


def _time(layout: JobDirectory, result: Mapping[str, Any]) -> Iterator[str]:
    split = result.get("time_split")
    if not split:
        return
    wall = split["wall_seconds"]
    yield "## Time"
    yield ""
    yield f"This start took {seconds_text(wall)}:"
    yield ""
    yield "| activity | seconds | share |"
    yield "|---|---|---|"
    for name, seconds in split["seconds"].items():
        if seconds >= LEAST_TOLD:
            yield f"| {name} | {seconds:.1f} | {100 * seconds / max(wall, 1e-9):.1f} % |"
    yield ""


def _optimizer(layout: JobDirectory, result: Mapping[str, Any]) -> Iterator[str]:
    optimizer = result.get("optimizer")
    if not optimizer:
        return
    yield "## Optimizer"
    yield ""
    yield f"{optimizer['class']}, {'fused' if optimizer['fused'] else 'not fused'}."
    yield ""
    yield "| group | state | tensors | parameters | bytes |"
    yield "|---|---|---|---|---|"
    for number, group in enumerate(optimizer["groups"]):
        for row in group["state"]:
            counts = (f"{row[name]:,}" for name in ("tensors", "parameters", "bytes"))
            yield f"| {number} | {row['dtype']} | " + " | ".join(counts) + " |"
    yield ""


def _evaluations(layout: JobDirectory, result: Mapping[str, Any]) -> Iterator[str]:
    rows = read_lines(layout.evaluations)
    if not rows:
        return
    names = sorted({name for row in rows for name in row} - {"step", "split", "seconds", "out_of_memory"})
    yield "## Evaluation"
    yield ""
    yield "| update | split | " + " | ".join(names) + " |"
    yield "|---|---|" + "---|" * len(names)
    for row in rows:
        yield (
            f"| {row['step']} | {row['split']} | " + " | ".join(_number(row.get(name)) for name in names) + " |"
        )
    yield ""
    tried = [(row, each) for row in rows for each in row.get("out_of_memory", ())]
    for row, each in tried:
        where = f"* out of memory evaluating {row['split']} after update {row['step']}"
        yield f"{where}: {halved_text(each)}; {_one_line(each['error'])}"
    if tried:
        yield ""


def _memory(layout: JobDirectory, result: Mapping[str, Any]) -> Iterator[str]:
    others = sorted(layout.root.glob(f"attempts/*/rank-*/{layout.phases.name}"))
    rows = [row for path in (layout.phases, *others) for row in read_lines(path)]
    if not rows:
        return
    yield "## Phases"
    yield ""
    yield "| attempt | rank | phase | seconds | peak MiB | resident before → after MiB | verdict |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        before, after = row["before"]["resident"] // MIB, row["after"]["resident"] // MIB
        verdict = (row["verdict"] + (", reused" if row["reused"] else "")).replace("|", "\\|")
        cells = (
            row["attempt"],
            row.get("rank", 0),
            f"{row.get('within', '')}/{row['phase']}".lstrip("/"),
            f"{row['seconds']:.1f}",
            row["peak"] // MIB,
            f"{before} → {after}",
        )
        yield "| " + " | ".join(map(str, cells)) + f" | {verdict} |"
    yield ""


def _outputs(layout: JobDirectory, result: Mapping[str, Any]) -> Iterator[str]:
    outputs = result.get("outputs") or []
    if not outputs:
        return
    yield "## Outputs"
    yield ""
    for output in outputs:
        yield f"* `{output['path']}`: {output['bytes']:,} bytes, sha256 {output['sha256']}"
    replay = result.get("replay")
    if replay:
        yield f"* loaded again in a new process: {replay['asked']} answers, all the same as before export"
    yield ""


def _comparison(layout: JobDirectory, result: Mapping[str, Any]) -> Iterator[str]:
    for row in (result.get("artifact") or {}).get("comparison", ()):
        yield f"### {_one_line(row.get('prompt'))}"
        yield ""
        for name in ("before", "after", "reference"):
            if name in row:
                yield f"* {name}: {_one_line(row[name])}"
        yield ""


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4f}"


def _one_line(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(text.split())
