"""Owns what is made of a rank's words: events for the control plane and lines for people.

Torch-free. It must not know processes, signals or how a run ends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from app_trainer_sdk.callbacks.sinks import Sink
from app_trainer_sdk.callbacks.spread import Unheard
from app_trainer_sdk.console import Console, halved_text
from app_trainer_sdk.errors import ExitCode
from app_trainer_sdk.events import Event, EventLog
from app_trainer_sdk.paths import number_from_environment
from app_trainer_sdk.plan import Plan, plan_lines

#: Of a phase's row an event carries the beginning; ``phases.jsonl`` has all of it.
HOLDERS_IN_EVENT, OWNER_CHARACTERS, VERDICT_CHARACTERS = 3, 200, 500
#: Of progress: evaluation, export and replay are still to come when the last update is made.
MOST_FRACTION = 0.999
#: Parts of a job in order; a phase of a trainer's own belongs to ``prepare`` and has no place of its own.
PHASES = ("plan", "inputs", "examine", "prepare", "train", "export", "replay", "upload")


class Narrator:
    """Turns messages into events and lines.

    Args:
        events: gives each event its identity and keeps it.
        sink: sends it.
        console: what a person sees.

    Attributes:
        phase: where the run is.
        step: updates made, as far as it was said.
        changed: what resumes of the job were allowed to change, None before the plan was said.
    """

    def __init__(self, events: EventLog, sink: Sink, console: Console) -> None:
        self._events = events
        self._sink = sink
        self._console = console
        self.phase = "inputs"
        self.step: int | None = None
        self.changed: list[Mapping[str, Any]] | None = None
        self._progress: Mapping[str, Any] | None = None
        self._unheard = Unheard()
        self._progress_sent = float("-inf")

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take one message of a rank; one of a kind that nobody knows is passed over."""
        facts = dict(message)
        handler = getattr(self, f"_on_{facts.pop('kind')}", None)
        if handler is not None:
            handler(facts)

    def say(self, kind: str, **facts: Any) -> Event:
        """Say an event, after the progress that came before it."""
        self.flush_progress(now=True)
        event = self._events.add(kind, **facts)
        self._sink.send(event)
        return event

    def finished(self, code: ExitCode) -> dict[str, Any]:
        """All of the progress, once all of the work is done, and not before."""
        if code is not ExitCode.SUCCEEDED or self.step is None:
            return {}
        return {"progress": {"fraction": 1.0, "step": self.step, "total": self.step, "eta_s": 0.0}}

    def flush_progress(self, *, now: bool = False) -> None:
        """Say the latest progress, not more often than the interval, and always before something else."""
        interval = number_from_environment("MIN_EVENT_INTERVAL", 5.0)
        if self._progress is None or (not now and time.monotonic() - self._progress_sent < interval):
            return
        facts, self._progress = self._progress, None
        self._progress_sent = time.monotonic()
        step, total = facts["step"], facts["total"]
        fraction = min(step / total, MOST_FRACTION)
        progress = {"fraction": fraction, "step": step, "total": total, "eta_s": facts["eta_seconds"]}
        performance = {
            "step_s": facts["seconds"], "data_wait_s": facts["data_seconds"],
            "data_wait_frac": facts.get("data_wait_share"), "step_s_p50": facts.get("seconds_p50"),
            "step_s_p95": facts.get("seconds_p95"), "examples_s": facts.get("examples_per_second"),
        }  # fmt: skip
        self._unheard.heard(self._sink.acknowledged())
        spreads, nonfinite = self._unheard.total()
        event = self._events.add(
            "job.progress", status="running", phase=phase_facts(self.phase), progress=progress,
            metrics={**facts["metrics"], **spreads}, nonfinite=nonfinite, perf=performance,
            memory=facts.get("memory"),
        )  # fmt: skip
        self._unheard.told(event.document["seq"])
        self._sink.send(event)

    def transferring(self, text: str, done: int, total: int) -> None:
        """Show how far a transfer is, to people only: it is not training's progress."""
        self._console.transfer(text, done, total)

    def transferred(self, row: Mapping[str, Any]) -> None:
        """Say what a transfer did, once."""
        self.say("job.phase", status="running", phase={"name": row["phase"]}, edge="end", row=row)

    def _on_plan(self, facts: dict[str, Any]) -> None:
        plan = Plan.from_document(facts["plan"])
        self.changed = list(plan.changed)
        self._console.lines(plan_lines(plan))
        for skipped in facts["skipped"]:
            self._console.lines([f"checkpoint skipped: {skipped}"])
        if facts["resumed"] is not None:
            self._console.lines([f"resuming after update {facts['resumed']}"])
        settings = {name: knob.effective for name, knob in plan.settings.items()}
        self.say(
            "job.plan", status="running", updates=plan.updates, examples_per_update=plan.examples_per_update,
            examples_seen=plan.examples_seen, resumed=facts["resumed"], settings=settings, data=facts["data"],
            changed=[each["field"] for each in plan.changed],
        )  # fmt: skip

    def _on_phase(self, facts: dict[str, Any]) -> None:
        self.phase = facts["name"]
        self.flush_progress(now=True)
        self._console.lines([f"phase: {self.phase}"])
        self.say("job.phase", status="running", phase=phase_facts(self.phase), edge="start")

    def _on_phase_end(self, facts: dict[str, Any]) -> None:
        holders = [
            {"owner": held["owner"][:OWNER_CHARACTERS], "tensors": held["tensors"], "bytes": held["bytes"]}
            for held in facts["survivors"][:HOLDERS_IN_EVENT]
        ]
        row = {**facts, "survivors": holders, "verdict": facts["verdict"][:VERDICT_CHARACTERS]}
        self.say("job.phase", status="running", phase=phase_facts(facts["phase"]), edge="end", row=row)

    def _on_work(self, facts: dict[str, Any]) -> None:
        total = f"/{facts['total']}" if facts["total"] else ""
        self._console.lines([f"{facts['label']}: {facts['done']}{total}"])

    def _on_progress(self, facts: dict[str, Any]) -> None:
        self.step = facts["step"]
        self._progress = facts
        self._unheard.add(facts.get("spreads", {}), facts["nonfinite"])
        self._console.progress(facts)
        self.flush_progress()

    def _on_recovered(self, facts: dict[str, Any]) -> None:
        where = f"evaluating {facts['split']} after" if "split" in facts else "at"
        told = f"out of memory {where} update {facts['step']}: {halved_text(facts)}; {facts['error']}"
        self._console.lines([told])
        self.say("job.recovered", status="running", **facts)

    def _on_evaluation(self, facts: dict[str, Any]) -> None:
        numbers = {name: value for name, value in facts.items() if name not in ("step", "split", "seconds")}
        told = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items() if value is not None)
        self._console.lines([f"evaluation after update {facts['step']}, {facts['split']}: {told}"])
        self.say("job.evaluation", status="running", step=facts["step"], split=facts["split"], metrics=numbers)

    def _on_checkpoint(self, facts: dict[str, Any]) -> None:
        self._console.lines(
            [f"checkpoint {facts['name']}: {facts['bytes']:,} bytes in {facts['seconds']:.2f} s"]
        )
        self.say("job.checkpoint", status="running", checkpoint=facts)

    def _on_artifact(self, facts: dict[str, Any]) -> None:
        self.say("job.artifact", status="running", artifact=facts)


def phase_facts(name: str) -> dict[str, Any]:
    """A phase by name and, where it has one, its place among all: ``{"name", "index", "count"}``."""
    if name not in PHASES:
        return {"name": name}
    return {"name": name, "index": PHASES.index(name) + 1, "count": len(PHASES)}
