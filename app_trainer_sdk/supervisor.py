"""Owns the process a container starts: it begins the ranks, hears what they say, and always tells the end.

Torch-free, so it is up at once, small, and alive when a rank is not. It owns signals and the order of an
attempt; ``attempt/`` owns what comes before and after the ranks, ``ranks.py`` the processes, ``narrator.py``
the events. It never trains, and must not know what is trained.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from app_trainer_sdk import __version__
from app_trainer_sdk.attempt.desk import Desk
from app_trainer_sdk.attempt.ending import end_attempt, keep_pages, tell_end
from app_trainer_sdk.attempt.preparation import Wishes, look_at_machine, prepare_start
from app_trainer_sdk.callbacks.answers import Order
from app_trainer_sdk.callbacks.choose import build_sink
from app_trainer_sdk.callbacks.sinks import NoSink, Sink
from app_trainer_sdk.claim import make_folder
from app_trainer_sdk.console import Console
from app_trainer_sdk.descendants import adopting_orphans
from app_trainer_sdk.errors import ExitCode, StopRequested, TrainerError
from app_trainer_sdk.events import EventLog
from app_trainer_sdk.files import read_json, write_json
from app_trainer_sdk.health import Heartbeat
from app_trainer_sdk.job import Job
from app_trainer_sdk.limits import PROC, MemoryWatch
from app_trainer_sdk.narrator import Narrator
from app_trainer_sdk.outcome import describe_failure, outcome_document
from app_trainer_sdk.outputs.handover import Handover
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.planning.fit import Foresight
from app_trainer_sdk.quantities import seconds_text
from app_trainer_sdk.ranks import LISTEN_SECONDS, PROGRAM, Ranks
from app_trainer_sdk.redaction import without_secrets
from app_trainer_sdk.stops import TELL_SHARE, Stops
from app_trainer_sdk.time_split import Stopwatch
from app_trainer_sdk.watch import Watch


class Supervisor:
    """One attempt of one job."""

    def __init__(
        self, job: Job, layout: JobDirectory, console: Console, sink: Sink | None = None, *, ranks: int = 1,
        nodes: int = 1, allow_changes: Sequence[str] = (), program: Sequence[str] = PROGRAM,
        foresight: Foresight = Foresight(), proc: Path = PROC,  # noqa: B008 - a frozen value
        made: Mapping[str, Any] | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._job = job
        self._layout = layout
        self._console = console
        self._attempt = layout.next_attempt()
        self._folder = layout.attempt(self._attempt)
        make_folder(self._folder)
        self._sink: Sink = sink or NoSink()
        self._chosen = sink is not None
        self._clock = clock
        self._stops = Stops(self._pass_on_stop, self._tick, clock=clock)
        self._stop_told: StopRequested | None = None
        self._heartbeat = Heartbeat(self._folder)
        self._count, self._nodes = ranks, nodes
        self._wishes = Wishes(ranks * nodes, allow_changes, foresight)
        self._program = program
        self._proc = proc
        self._made = made  # by an earlier attempt: only the upload is left
        self._activities = Stopwatch()
        self._ranks: Ranks | None = None
        self._watch: Watch | None = None

    def run(self) -> ExitCode:
        """Do it, and leave result, report and terminal event whatever happens."""
        self._open()
        with adopting_orphans(), self._stops.listening():
            self._tick()
            code = end_attempt(self._desk, self._outcome())
        self._beat(over=True)
        return code

    def tell_again(self) -> ExitCode:
        """Tell the end of a finished job that an earlier start was killed before telling."""
        result = read_json(self._layout.result)
        self._open()
        self._narrator.step = result.get("step")
        with self._stops.listening():
            keep_pages(self._desk, result)
            code = tell_end(self._desk, result)
        self._beat(over=True)
        return code

    def _open(self) -> None:
        events = EventLog(
            self._folder, job_id=self._job.identifier(), attempt=self._attempt, instance=secrets.token_hex(4)
        )
        if not self._chosen:
            self._sink = build_sink(self._job, self._layout, events, attempt=self._attempt, obey=self.order)
        self._narrator = Narrator(events, self._sink, self._console)
        self._desk = Desk(
            self._job, self._layout, self._attempt, self._console, self._narrator, self._sink, self._stops,
            self._activities,
        )  # fmt: skip
        self._handover = Handover(
            self._job, self._layout, attempt=self._attempt, narrator=self._narrator, stops=self._stops,
            console=self._console,
        )  # fmt: skip

    def order(self, order: Order) -> None:
        """Take an order of the control plane, from any thread."""
        self._stops.order(order)

    def _outcome(self) -> dict[str, Any]:
        try:
            self._put_away_result()
            if not self._layout.job.exists():
                write_json(self._layout.job, without_secrets(self._job.document()))
            self._narrator.say("job.accepted", status="running", sdk=__version__)
            if self._made is not None:
                self._narrator.step = self._made.get("step")
                with self._activities.on("upload"):
                    return self._handover.finish(outcome_document(ExitCode.SUCCEEDED, **self._made))
            look_at_machine(self._desk, ranks=self._count)
            prepare_start(self._desk, self._wishes)
            with self._activities.on("ranks"):
                outcome = self._supervise()
            with self._activities.on("upload"):
                return self._handover.finish(outcome)
        except (Exception, StopRequested) as error:  # noqa: BLE001 - the end is told whatever it is
            self._handover.drop()
            failure = describe_failure(error, phase=self._narrator.phase, step=self._narrator.step)
            return outcome_document(ExitCode(failure["code"]), failure=failure)

    def _put_away_result(self) -> None:
        """The result of an earlier attempt goes to its folder: nobody must take it for this one's."""
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            folder = self._layout.attempt(int(read_json(self._layout.result)["attempt"]))
            for path in (self._layout.report, self._layout.result, self._layout.manifest):
                path.replace(folder / path.name)

    def _supervise(self) -> dict[str, Any]:
        self._ranks = ranks = Ranks(
            self._folder, self._count, program=self._program, nodes=self._nodes, clock=self._clock
        )
        self._watch = Watch(ranks, MemoryWatch(self._proc), clock=self._clock)
        try:
            with self._stops.spending("checkpoint"):
                ranks.begin()
                self._pass_on_stop(self._stops.asked)  # one that came before there was anybody to tell
                while ranks.working and not self._stops.overdue:
                    for message in ranks.listen(LISTEN_SECONDS):
                        self._narrator.hear(message)
                        self._handover.hear(message)
                    self._handover.tell()
                    self._narrator.flush_progress()
                    self._tell_stop()
                    ranks.mind_failures(self._stops.asked)
                    ranks.bury_orphans()
                    self._act(self._watch.look(), ranks)
        finally:
            # Who did not end in time is killed: its last checkpoint is still valid.
            with self._stops.spending("kill"):
                ranks.close()
        self._stops.look()
        if self._stops.asked is not None and self._stops.asked.reason == "fenced":
            raise self._stops.asked  # even where the work was just done: it is not this start's to hand over
        outcome = ranks.outcome(self._stops.asked, phase=self._narrator.phase, step=self._narrator.step)
        return self._watch.explained(outcome)

    def _act(self, found: str | TrainerError, ranks: Ranks) -> None:
        """Do what the watch asks for."""
        if isinstance(found, TrainerError):
            self._console.lines([f"ending the ranks: {found}"])
            ranks.give_up(found)
        elif found and self._watch is not None:
            seconds = round(self._watch.stalled or 0.0, 1)
            self._console.lines(
                [f"nothing has moved for {seconds_text(seconds)}; stacks are in the rank's log"]
            )
            phase = {"name": self._narrator.phase}
            self._narrator.say(
                "job.stalled", status="running", phase=phase, step=self._narrator.step, seconds=seconds
            )

    def _pass_on_stop(self, stop: StopRequested | None) -> None:
        if stop is None:
            return
        if self._ranks is not None:
            self._ranks.tell(stop)
        self._sink.hurry(self._stops.grace * TELL_SHARE)

    def _tell_stop(self) -> None:
        """Say once that somebody asked to stop; a handler must not print."""
        stop = self._stops.asked
        if stop is self._stop_told or stop is None:
            return
        self._stop_told = stop
        keeps = "stopping after a checkpoint; a second signal skips it"
        self._console.lines([keeps if stop.checkpoint else "stopping without a checkpoint"])

    def _tick(self) -> None:
        """Beat, wherever the main thread is; a handler must not print."""
        self._beat()

    def _beat(self, **facts: Any) -> None:
        stopping = self._stops.asked.reason if self._stops.asked is not None else None
        stalled = self._watch is not None and self._watch.stalled is not None
        self._heartbeat.beat(
            phase=self._narrator.phase, step=self._narrator.step, stopping=stopping, stalled=stalled,
            **facts,
        )  # fmt: skip
