"""Owns the process a container starts: it begins the ranks, hears what they say, and always tells the end.

Torch-free, so it is up at once, small, and alive when a rank is not. It owns signals, the exit code and
``result.json``; ``ranks.py`` owns the processes, ``narrator.py`` the events. It never trains.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from app_trainer_sdk import __version__
from app_trainer_sdk.callbacks.answers import Order
from app_trainer_sdk.callbacks.choose import asked_trackers, build_sink
from app_trainer_sdk.callbacks.flush import deliver_backlog
from app_trainer_sdk.callbacks.last_words import leave_last_words
from app_trainer_sdk.callbacks.sinks import NoSink, Sink
from app_trainer_sdk.changes import check_allowed
from app_trainer_sdk.checkpoints import find_checkpoints
from app_trainer_sdk.claim import alone_in, free_if_untrained, is_finished, make_folder, under_its_name
from app_trainer_sdk.console import Console, seconds_text
from app_trainer_sdk.contract import Trainer
from app_trainer_sdk.descendants import adopting_orphans
from app_trainer_sdk.errors import ExitCode, StopRequested, TrainerError
from app_trainer_sdk.events import EVENTS, Event, EventLog, read_terminal
from app_trainer_sdk.files import read_json, sha256_file, write_json
from app_trainer_sdk.health import Heartbeat
from app_trainer_sdk.inputs import fetch_inputs
from app_trainer_sdk.job import Job, check_job, load_job
from app_trainer_sdk.limits import PROC, MemoryWatch
from app_trainer_sdk.narrator import Narrator
from app_trainer_sdk.nodes import help_out, place_from_environment
from app_trainer_sdk.outcome import describe_failure, outcome_document, status_of
from app_trainer_sdk.outputs.handover import Handover
from app_trainer_sdk.outputs.remote import fetch_resume
from app_trainer_sdk.paths import PREFIX, JobDirectory, cache_directory, number_from_environment
from app_trainer_sdk.planning.fit import Foresight, cards_to_plan_for, fit_to_cards, room_for_checkpoints
from app_trainer_sdk.planning.measured import find_measured
from app_trainer_sdk.preflight import command as preflight
from app_trainer_sdk.ranks import LISTEN_SECONDS, LOG_TAIL_LINES, PROGRAM, Ranks
from app_trainer_sdk.redaction import guard, redacted, without_secrets
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.report import write_report
from app_trainer_sdk.start import START, Start
from app_trainer_sdk.stops import Stops
from app_trainer_sdk.time_split import Stopwatch, time_split
from app_trainer_sdk.transfers.space import same_disk
from app_trainer_sdk.transfers.weights import fetch_weights
from app_trainer_sdk.trust.formats import refuse_untrusted
from app_trainer_sdk.watch import Watch

RESULT_SCHEMA = "app.trainer.result/v1"


def run_job(
    job_file: Path, directory: Path, *, console: Console | None = None, ranks: int = 1,
    allow_changes: Sequence[str] = (), gpu: str = "", pilot: Path | None = None,
) -> ExitCode:  # fmt: skip
    """Run a job, or go on with it, in ``directory``; on a finished one say so and change nothing.

    Args:
        job_file: the job document.
        directory: the job's directory.
        console: what a person sees.
        ranks: processes that train together.
        allow_changes: fields of the identity in which a resume may differ from its checkpoint.
        gpu: the card to plan memory for; empty for those that are there, ``none`` for no plan.
        pilot: a ``pilot.json`` to learn from, instead of the one in the directory.

    Returns:
        the code the process should exit with.
    """
    console = console or Console()
    guard()
    try:
        job = load_job(job_file)
        guard(job.document())
        trainer = find_trainer(job.trainer)
        check_job(job, trainer)
        check_allowed(allow_changes, trainer)
        asked_trackers()
        layout = JobDirectory(directory.resolve())
        make_folder(layout.root)
        place = place_from_environment()
        if place.node:
            return help_out(layout, place, ranks, console)
        foresight = Foresight(cards_to_plan_for(gpu), pilot)
        with alone_in(layout.root):
            return _go_on(job, layout, console, ranks, allow_changes, foresight, place.nodes)
    except TrainerError as error:
        console.lines([f"error: {error}"])
        return error.code


def _go_on(
    job: Job, layout: JobDirectory, console: Console, ranks: int, allow_changes: Sequence[str],
    foresight: Foresight, nodes: int,
) -> ExitCode:  # fmt: skip
    free_if_untrained(layout, job)
    job = under_its_name(layout, job, may_change=bool(allow_changes))
    if (code := answer_if_finished(job, layout, console)) is not None:
        return code
    if (ended := read_terminal(layout.attempt(layout.next_attempt()))) is not None:
        return _ended_before(ended, job, layout, console)
    return Supervisor(
        job, layout, console, ranks=ranks, nodes=nodes, allow_changes=allow_changes, foresight=foresight
    ).run()


def answer_if_finished(job: Job, layout: JobDirectory, console: Console) -> ExitCode | None:
    """Say that a job is finished, and to the control plane what it has not heard; None for one that is not."""
    if not is_finished(layout, job):
        return None
    if _is_untold(layout):
        console.lines([f"{job.identifier()} is complete; its end is told now"])
        return Supervisor(job, layout, console).tell_again()
    console.lines([f"{job.identifier()} is already complete: see {layout.report}; nothing was changed"])
    _tell_the_rest(job, layout, console)
    return ExitCode.SUCCEEDED


def _is_untold(layout: JobDirectory) -> bool:
    """Whether a supervisor was killed between the result of a finished job and the event that tells it."""
    finished = int(read_json(layout.result).get("attempt", 0))
    folders = [each for each in (layout.root / "attempts").glob("*") if each.name.isdecimal()]
    later = [each for each in folders if int(each.name) >= finished]
    began = (layout.attempt(finished) / EVENTS).exists()
    return began and not any(read_terminal(each) for each in later)


def _ended_before(ended: Event, job: Job, layout: JobDirectory, console: Console) -> ExitCode:
    """The attempt that was asked for told its end already: tell it again, byte for byte, and end like it."""
    code, attempt = ExitCode(ended.document["code"]), ended.document["attempt"]
    how = f"has ended before: {status_of(code)} (exit code {int(code)})"
    another = f"another attempt has another number: {PREFIX}ATTEMPT={attempt + 1}"
    console.lines([f"attempt {attempt} of {job.identifier()} {how}", another])
    _tell_the_rest(job, layout, console)
    return code


def _tell_the_rest(job: Job, layout: JobDirectory, console: Console) -> None:
    """Send what earlier starts could not."""
    _, _, left = deliver_backlog(job.callbacks, layout, _delivery_seconds())
    if left and job.callbacks is not None:
        console.lines([f"{left} events were not delivered; they are kept in {layout.root / 'attempts'}"])


def _delivery_seconds() -> float:
    return number_from_environment("UPLOAD_WAIT_SECONDS", 15.0)


class Supervisor:
    """One attempt of one job."""

    def __init__(
        self, job: Job, layout: JobDirectory, console: Console, sink: Sink | None = None, *, ranks: int = 1,
        nodes: int = 1, allow_changes: Sequence[str] = (), program: Sequence[str] = PROGRAM,
        foresight: Foresight = Foresight(), proc: Path = PROC,  # noqa: B008 - a frozen value
        made: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._job = job
        self._layout = layout
        self._console = console
        self._attempt = layout.next_attempt()
        self._folder = layout.attempt(self._attempt)
        make_folder(self._folder)
        self._sink: Sink = sink or NoSink()
        self._chosen = sink is not None
        self._stops = Stops(self._pass_on_stop, self._tick)
        self._stop_told: StopRequested | None = None
        self._heartbeat = Heartbeat(self._folder)
        self._count, self._nodes = ranks, nodes
        self._allow_changes = list(allow_changes)
        self._program = program
        self._foresight = foresight
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
            return self._finish(self._outcome())

    def tell_again(self) -> ExitCode:
        """Tell the end of a finished job that an earlier start was killed before telling."""
        result = read_json(self._layout.result)
        self._open()
        self._narrator.step = result.get("step")
        with self._stops.listening():
            self._keep_pages(result)
            return self._tell_end(result)

    def _open(self) -> None:
        events = EventLog(
            self._folder, job_id=self._job.identifier(), attempt=self._attempt, instance=secrets.token_hex(4)
        )
        if not self._chosen:
            self._sink = build_sink(self._job, self._layout, events, attempt=self._attempt, obey=self.order)
        self._narrator = Narrator(events, self._sink, self._console)
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
            self._look_at_machine()
            self._prepare_start()
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

    def _look_at_machine(self) -> None:
        """Refuse a machine that cannot do the job before anything is fetched; settle where libraries write."""
        self._narrator.phase = "preflight"
        report, variables = preflight.look(self._job, self._layout.root, ranks=self._count)
        write_json(self._folder / preflight.FILE, report.document())
        self._console.lines(report.doubts())
        if (error := report.error()) is not None:
            raise error
        preflight.apply(variables)
        self._narrator.phase = "inputs"

    def _prepare_start(self) -> None:
        """Make inputs and weights local; a rank never downloads."""
        trainer = find_trainer(self._job.trainer)
        settings, row, _ = check_job(self._job, trainer)
        cache = cache_directory()
        make_folder(cache, setting=PREFIX + "CACHE_DIR")
        (self._folder / START).unlink(missing_ok=True)  # of an earlier start: other nodes wait for this one's
        check = self._stops.check
        with self._stops.interruptible():  # a silent server must not use up the grace
            with self._activities.on("download"):
                fetch_resume(self._job, self._layout, check, told=self._narrator)
            with self._activities.on("start"):
                foreseen = self._foresee(trainer)
            reserve = room_for_checkpoints(foreseen.get("fit", {}), settings.checkpoints_kept)
            with self._activities.on("download"):
                inputs = fetch_inputs(
                    self._job, self._layout.inputs, check, told=self._narrator, reserve=reserve
                )
                reserve = reserve if same_disk(cache, self._layout.root) else 0
                weights, identities = fetch_weights(
                    self._job, row, cache, check, told=self._narrator, reserve=reserve
                )
                refuse_untrusted(weights, self._job.allowed)
        start = Start(
            directory=str(self._layout.root), attempt=self._attempt, cache=str(cache),
            job=without_secrets(self._job.document()),
            inputs={name: str(path) for name, path in inputs.items()},
            weights={role: str(path) for role, path in weights.items()}, weights_identity=identities,
            ranks=self._count * self._nodes, allow_changes=self._allow_changes, **foreseen,
        )  # fmt: skip
        start.save()

    def _foresee(self, trainer: type[Trainer]) -> dict[str, Any]:
        """What a pilot measured, and knobs for the card that is there.

        A checkpoint has a plan, which is never made again.
        """
        if find_checkpoints(self._layout.checkpoints):
            return {}
        measured, why_not = find_measured(self._foresight.pilot, self._layout.root, self._job, trainer)
        self._console.lines([f"the pilot is not used: {why_not}"] if why_not else [])
        told = {} if measured is None else {"measured": dataclasses.asdict(measured)}
        if cards := self._foresight.cards():
            self._narrator.hear({"kind": "phase", "name": "plan"})
            told["fit"] = fit_to_cards(
                self._job, trainer, cards, replicas=self._count * self._nodes, measured=measured
            )
            self._narrator.hear({"kind": "phase", "name": "inputs"})
        return told

    def _supervise(self) -> dict[str, Any]:
        self._ranks = ranks = Ranks(self._folder, self._count, program=self._program, nodes=self._nodes)
        self._watch = Watch(ranks, MemoryWatch(self._proc))
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
        if self._ranks is not None and stop is not None:
            self._ranks.tell(stop)

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
        stopping = self._stops.asked.reason if self._stops.asked is not None else None
        stalled = self._watch is not None and self._watch.stalled is not None
        self._heartbeat.beat(
            phase=self._narrator.phase, step=self._narrator.step, stopping=stopping, stalled=stalled
        )

    def _finish(self, outcome: dict[str, Any]) -> ExitCode:
        result = self._result(outcome)
        unkept = self._keep_result(result)
        if unkept is not None and outcome["status"] == "succeeded":
            # Work that nobody can find is not done: the artifacts are kept and the next start ends the job.
            failure = describe_failure(unkept, phase="result", step=self._narrator.step)
            outcome = outcome_document(ExitCode(failure["code"]), failure=failure)
            result = self._result(outcome)
        return self._tell_end(result)

    def _tell_end(self, result: Mapping[str, Any]) -> ExitCode:
        code = ExitCode(result["exit_code"])
        kinds = {"succeeded": "job.succeeded", "canceled": "job.canceled", "interrupted": "job.interrupted"}
        outputs = [each for each in result.get("outputs") or () if each.get("stored") is not False]
        stored = {"stored_bytes": sum(result["stored"].values())} if "stored" in result else {}
        size = sum(each["bytes"] for each in outputs)
        told = {"count": len(outputs), "bytes": size, **stored, **self._manifest_facts()}
        kind = kinds.get(str(result["status"]), "job.failed")
        said = self._narrator.say(
            kind, status=result["status"], code=int(code), outputs=told, failure=result.get("failure"),
            **self._narrator.finished(code),
        )  # fmt: skip
        if said.terminal:
            leave_last_words(said)
        with self._stops.spending("terminal"):
            delivered = self._sink.close(self._stops.seconds_to_tell(_delivery_seconds()))
        if not delivered:
            self._console.lines([f"not every event was delivered; they are kept in {self._folder}"])
        self._keep_stop(result)
        self._console.lines(_last_words(result, self._layout))
        return code

    def _manifest_facts(self) -> dict[str, str]:
        """The digest of what the run says of itself, where that could be written."""
        with contextlib.suppress(OSError):
            return {"manifest_sha256": sha256_file(self._layout.manifest)}
        return {}

    def _result(self, outcome: Mapping[str, Any]) -> dict[str, Any]:
        head = {"schema": RESULT_SCHEMA, "job_id": self._job.identifier(), "attempt": self._attempt}
        changed = self._narrator.changed
        told: dict[str, Any] = {} if changed is None else {"changed": changed}
        own, of_rank = self._activities.seconds(), outcome.get("activities") or {}
        split = time_split(own, own.pop("ranks", 0.0), of_rank)
        ending = {name: value for name, value in outcome.items() if name != "activities"}
        result: dict[str, Any] = redacted({**head, "sdk": __version__, **told, **ending, "time_split": split})
        return result

    def _keep_result(self, result: Mapping[str, Any]) -> Exception | None:
        """Write the result and the report; a disk that takes neither must not keep the end from being told.

        Returns:
            what kept the result from being written.
        """
        try:
            write_json(self._layout.result, result)
        except Exception as error:  # noqa: BLE001 - the exit code and the terminal event are still to come
            self._console.lines([f"warning: the result is not kept: {error}"])
            return error
        self._keep_pages(result)
        return None

    def _keep_pages(self, result: Mapping[str, Any]) -> None:
        from app_trainer_sdk.manifest.gather import write_manifest  # its document takes long to load

        job = self._job.document()
        for name, write in (("report", write_report), ("manifest", partial(write_manifest, asked=job))):
            try:
                write(self._layout, result)
            except Exception as error:  # noqa: BLE001 - the same; what both tell stands in other files too
                self._console.lines([f"warning: the {name} is not kept: {error}"])

    def _keep_stop(self, result: Mapping[str, Any]) -> None:
        """Add to the result what the grace was spent on, now that the last of it is spent."""
        stop = self._stops.document()
        if stop is not None:
            with contextlib.suppress(OSError):
                write_json(self._layout.result, {**result, "stop": stop})


def _last_words(result: Mapping[str, Any], layout: JobDirectory) -> list[str]:
    lines = [
        f"{result['job_id']}: {status_of(ExitCode(result['exit_code']))} (exit code {result['exit_code']})"
    ]
    failure = result.get("failure")
    if failure:
        lines.append(f"error: {failure['message']}")
        lines += [f"  {line}" for line in str(failure.get("traceback", "")).splitlines()[-LOG_TAIL_LINES:]]
    if result["exit_code"] == ExitCode.UPLOAD_FAILED:
        lines.append(f"the artifacts are kept; later: app-trainer upload {layout.root}")
    if result["status"] == "interrupted" and result["exit_code"] != ExitCode.FENCED:
        lines.append("run the same command again to go on from the last checkpoint")
    seconds = sum((result.get("timings") or {}).values())
    lines.append(f"time in phases {seconds_text(seconds)}; report: {layout.report}")
    return lines
