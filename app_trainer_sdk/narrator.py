"""Owns what is made of a rank's words: events for the control plane and lines for people.

Torch-free. It must not know processes, signals or how a run ends.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from app_trainer_sdk.callbacks.sinks import Sink
from app_trainer_sdk.console import Console
from app_trainer_sdk.events import EventLog
from app_trainer_sdk.paths import number_from_environment
from app_trainer_sdk.plan import Plan, plan_lines

#: Of a phase's row an event carries the beginning; ``phases.jsonl`` has all of it.
HOLDERS_IN_EVENT, OWNER_CHARACTERS, VERDICT_CHARACTERS = 3, 200, 500


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
        self._progress_sent = float("-inf")

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take one message of a rank; one of a kind that nobody knows is passed over."""
        facts = dict(message)
        handler = getattr(self, f"_on_{facts.pop('kind')}", None)
        if handler is not None:
            handler(facts)

    def say(self, kind: str, **facts: Any) -> None:
        """Say an event, after the progress that came before it."""
        self.flush_progress(now=True)
        self._sink.send(self._events.add(kind, **facts))

    def flush_progress(self, *, now: bool = False) -> None:
        """Say the latest progress, not more often than the interval, and always before something else."""
        interval = number_from_environment("MIN_EVENT_INTERVAL", 5.0)
        if self._progress is None or (not now and time.monotonic() - self._progress_sent < interval):
            return
        facts, self._progress = self._progress, None
        self._progress_sent = time.monotonic()
        step, total = facts["step"], facts["total"]
        progress = {"fraction": step / total, "step": step, "total": total, "eta_s": facts["eta_seconds"]}
        performance = {"step_s": facts["seconds"], "data_wait_s": facts["data_seconds"]}
        self._sink.send(
            self._events.add(
                "job.progress", status="running", phase={"name": self.phase}, progress=progress,
                metrics=facts["metrics"], nonfinite=facts["nonfinite"], perf=performance,
            )
        )  # fmt: skip

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
        self.say("job.phase", status="running", phase={"name": self.phase}, edge="start")

    def _on_phase_end(self, facts: dict[str, Any]) -> None:
        holders = [
            {"owner": held["owner"][:OWNER_CHARACTERS], "tensors": held["tensors"], "bytes": held["bytes"]}
            for held in facts["survivors"][:HOLDERS_IN_EVENT]
        ]
        row = {**facts, "survivors": holders, "verdict": facts["verdict"][:VERDICT_CHARACTERS]}
        self.say("job.phase", status="running", phase={"name": facts["phase"]}, edge="end", row=row)

    def _on_work(self, facts: dict[str, Any]) -> None:
        total = f"/{facts['total']}" if facts["total"] else ""
        self._console.lines([f"{facts['label']}: {facts['done']}{total}"])

    def _on_progress(self, facts: dict[str, Any]) -> None:
        self.step = facts["step"]
        self._progress = facts
        self._console.progress(facts)
        self.flush_progress()

    def _on_recovered(self, facts: dict[str, Any]) -> None:
        halved = f"microbatch {facts['microbatch']} → {facts['next']} at the same global batch"
        self._console.lines([f"out of memory at update {facts['step']}: {halved}; {facts['error']}"])
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
