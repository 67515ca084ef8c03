"""Owns the process a container starts: it begins the rank, hears what it says, and always tells the end.

Torch-free, so it is up at once, small, and alive when the rank is not. It owns events, the exit code and
``result.json``; it never trains.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from app_trainer_sdk import __version__
from app_trainer_sdk.claim import is_finished, make_folder
from app_trainer_sdk.console import Console, seconds_text
from app_trainer_sdk.errors import ExitCode, StopReason, StopRequested, TrainerError
from app_trainer_sdk.events import EventLog
from app_trainer_sdk.files import read_json, write_json
from app_trainer_sdk.inputs import fetch_inputs, fetch_weights
from app_trainer_sdk.job import Job, check_job, load_job
from app_trainer_sdk.outcome import describe_failure, outcome_document, status_of
from app_trainer_sdk.paths import JobDirectory, cache_directory, number_from_environment
from app_trainer_sdk.plan import Plan, plan_lines
from app_trainer_sdk.registry import find_trainer
from app_trainer_sdk.report import write_report
from app_trainer_sdk.sinks import HttpSink, NoSink, Sink
from app_trainer_sdk.start import Start

RESULT_SCHEMA = "app.trainer.result/v1"
SECOND_SIGNAL_SECONDS = 1.0
LOG_TAIL_LINES = 12
#: Kept of the grace for the last words after the last try to deliver them.
LAST_SECONDS = 1.0


def run_job(job_file: Path, directory: Path, *, console: Console | None = None) -> ExitCode:
    """Run a job, or go on with it, in ``directory``; on a finished one say so and change nothing.

    Returns:
        the code the process should exit with.
    """
    console = console or Console()
    try:
        job = load_job(job_file)
        trainer = find_trainer(job.trainer)
        check_job(job, trainer)
        layout = JobDirectory(directory.resolve())
        if is_finished(layout, job):
            console.lines([f"{job.identifier()} is already complete: see {layout.report}; nothing was changed"])
            return ExitCode.SUCCEEDED
        supervisor = Supervisor(job, layout, console)
    except TrainerError as error:
        console.lines([f"error: {error}"])
        return error.code
    return supervisor.run()


class Supervisor:
    """One attempt of one job."""

    def __init__(self, job: Job, layout: JobDirectory, console: Console, sink: Sink | None = None) -> None:
        self._job = job
        self._layout = layout
        self._console = console
        self._attempt = layout.next_attempt()
        self._folder = layout.attempt(self._attempt)
        make_folder(self._folder)
        self._sink: Sink = sink or (HttpSink(job.callbacks.url) if job.callbacks else NoSink())
        self._stop: StopRequested | None = None
        self._stopped_at = 0.0
        self._stop_told: StopRequested | None = None
        self._fetching = False
        self._phase = "inputs"
        self._step: int | None = None
        self._progress: Mapping[str, Any] | None = None
        self._progress_sent = float("-inf")
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None

    def run(self) -> ExitCode:
        """Do it, and leave result, report and terminal event whatever happens."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        previous = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            self._events = EventLog(
                self._folder,
                job_id=self._job.identifier(),
                attempt=self._attempt,
                instance=secrets.token_hex(4),
            )
            return self._finish(self._outcome())
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _outcome(self) -> dict[str, Any]:
        try:
            if not self._layout.job.exists():
                write_json(self._layout.job, self._job.document())
            self._say("job.accepted", status="running", sdk=__version__)
            start = self._prepare_start()
            return self._supervise(start)
        except (Exception, StopRequested) as error:  # noqa: BLE001 - the end is told whatever it is
            failure = describe_failure(error, phase=self._phase, step=self._step)
            return outcome_document(ExitCode(failure["code"]), failure=failure)

    def _prepare_start(self) -> Start:
        """Make inputs and weights local; a rank never downloads."""
        trainer = find_trainer(self._job.trainer)
        _, row, _ = check_job(self._job, trainer)
        cache = cache_directory()
        cache.mkdir(parents=True, exist_ok=True)
        with self._interruptible():
            inputs = fetch_inputs(self._job, self._layout.inputs, self._check)
            weights, identities = fetch_weights(self._job, row, cache, self._check)
        start = Start(
            directory=str(self._layout.root), attempt=self._attempt, cache=str(cache), job=self._job.document(),
            inputs={name: str(path) for name, path in inputs.items()},
            weights={role: str(path) for role, path in weights.items()}, weights_identity=identities,
        )  # fmt: skip
        start.save()
        return start

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Inside, a signal raises at once: a silent server must not use up the grace."""
        self._fetching = True
        try:
            self._check()
            yield
        finally:
            self._fetching = False

    def _supervise(self, start: Start) -> dict[str, Any]:
        mine, theirs = socket.socketpair()
        self._connection = mine
        log = self._folder / "logs" / "rank-0.log"
        log.parent.mkdir(exist_ok=True)
        self._outcome_file.unlink(missing_ok=True)  # of an earlier start of the same attempt
        start_file = self._folder / "start.json"
        command = [sys.executable, "-m", "app_trainer_sdk.training.rank", str(start_file), str(theirs.fileno())]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[theirs.fileno()],
                start_new_session=True, env=_rank_environment(),
            )  # fmt: skip
        theirs.close()
        if self._stop is not None:
            self._pass_on_stop()
        try:
            self._listen(mine)
            self._await_end()
        finally:
            _end_session(self._process.pid)
            mine.close()
        return self._read_outcome(log)

    def _listen(self, connection: socket.socket) -> None:
        """Hear the rank until it has closed its end."""
        pieces = b""
        with selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            while True:
                for _ in selector.select(timeout=0.1):
                    piece = _receive(connection)
                    if not piece:
                        return
                    *lines, pieces = (pieces + piece).split(b"\n")
                    for line in lines:
                        self._hear(line)
                self._flush_progress()
                self._tell_stop()
                self._enforce_grace()
                assert self._process is not None
                if self._process.poll() is not None and not selector.select(timeout=0):
                    return

    def _await_end(self) -> None:
        assert self._process is not None
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.1)
                return
            self._enforce_grace()

    def _hear(self, line: bytes) -> None:
        import json

        facts = json.loads(line)
        kind = facts.pop("kind")
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            handler(facts)

    def _on_plan(self, facts: dict[str, Any]) -> None:
        plan = Plan.from_document(facts["plan"])
        self._console.lines(plan_lines(plan))
        for skipped in facts["skipped"]:
            self._console.lines([f"checkpoint skipped: {skipped}"])
        if facts["resumed"] is not None:
            self._console.lines([f"resuming after update {facts['resumed']}"])
        settings = {name: knob.effective for name, knob in plan.settings.items()}
        self._say(
            "job.plan", status="running", updates=plan.updates, examples_per_update=plan.examples_per_update,
            examples_seen=plan.examples_seen, resumed=facts["resumed"], settings=settings, data=facts["data"],
        )  # fmt: skip

    def _on_phase(self, facts: dict[str, Any]) -> None:
        self._phase = facts["name"]
        self._flush_progress(now=True)
        self._console.lines([f"phase: {self._phase}"])
        self._say("job.phase", status="running", phase={"name": self._phase}, edge="start")

    def _on_phase_end(self, facts: dict[str, Any]) -> None:
        self._say("job.phase", status="running", phase={"name": facts["phase"]}, edge="end", row=facts)

    def _on_work(self, facts: dict[str, Any]) -> None:
        total = f"/{facts['total']}" if facts["total"] else ""
        self._console.lines([f"{facts['label']}: {facts['done']}{total}"])

    def _on_progress(self, facts: dict[str, Any]) -> None:
        self._step = facts["step"]
        self._progress = facts
        self._console.progress(facts)
        self._flush_progress()

    def _on_evaluation(self, facts: dict[str, Any]) -> None:
        numbers = {name: value for name, value in facts.items() if name not in ("step", "split", "seconds")}
        told = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items() if value is not None)
        self._console.lines([f"evaluation after update {facts['step']}, {facts['split']}: {told}"])
        self._say("job.evaluation", status="running", step=facts["step"], split=facts["split"], metrics=numbers)

    def _on_checkpoint(self, facts: dict[str, Any]) -> None:
        self._console.lines(
            [f"checkpoint {facts['name']}: {facts['bytes']:,} bytes in {facts['seconds']:.2f} s"]
        )
        self._say("job.checkpoint", status="running", checkpoint=facts)

    def _on_artifact(self, facts: dict[str, Any]) -> None:
        self._say("job.artifact", status="running", artifact=facts)

    def _flush_progress(self, *, now: bool = False) -> None:
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
                "job.progress", status="running", phase={"name": self._phase}, progress=progress,
                metrics=facts["metrics"], nonfinite=facts["nonfinite"], perf=performance,
            )
        )  # fmt: skip

    def _say(self, kind: str, **facts: Any) -> None:
        self._flush_progress(now=True)
        self._sink.send(self._events.add(kind, **facts))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._stop is None:
            self._request_stop("interrupted")
            if self._fetching:
                self._check()
        elif time.monotonic() - self._stopped_at >= SECOND_SIGNAL_SECONDS:
            self._stop = StopRequested(self._stop.reason, checkpoint=False)
            self._pass_on_stop()

    def _request_stop(self, reason: StopReason) -> None:
        self._stop = StopRequested(reason)
        self._stopped_at = time.monotonic()
        self._pass_on_stop()

    def _pass_on_stop(self) -> None:
        if self._connection is None or self._stop is None:
            return
        word = "true" if self._stop.checkpoint else "false"
        message = f'{{"kind": "stop", "reason": "{self._stop.reason}", "checkpoint": {word}}}\n'
        try:
            self._connection.sendall(message.encode())
        except OSError:
            return  # the rank is gone already; its outcome tells how

    def _tell_stop(self) -> None:
        """Say once that a signal was heard; a handler must not print."""
        if self._stop is self._stop_told:
            return
        self._stop_told = self._stop
        keeps = self._stop is not None and self._stop.checkpoint
        self._console.lines(
            [
                "stopping after a checkpoint; a second signal skips it"
                if keeps
                else "stopping without a checkpoint"
            ]
        )

    def _check(self) -> None:
        if self._stop is not None:
            raise self._stop

    def _enforce_grace(self) -> None:
        """A rank that does not end in time is killed: its last checkpoint is still valid."""
        grace = number_from_environment("GRACE_SECONDS", 30.0)
        allowed = grace - max(2.0, grace * 0.05)
        if self._stop is not None and time.monotonic() - self._stopped_at > allowed:
            assert self._process is not None
            _end_session(self._process.pid)

    def _read_outcome(self, log: Path) -> dict[str, Any]:
        """What the rank left, or what its silence means."""
        assert self._process is not None
        if self._outcome_file.exists():
            outcome: dict[str, Any] = read_json(self._outcome_file)
            if outcome.get("failure") and outcome["failure"].get("step") is None:
                outcome["failure"]["step"] = self._step
            return outcome
        if self._stop is not None:
            failure = describe_failure(self._stop, phase=self._phase, step=self._step)
            return outcome_document(self._stop.code, failure=failure)
        status = self._process.returncode
        how = f"was killed by {_signal_text(-status)}" if status < 0 else f"ended with status {status}"
        failure = describe_failure(
            TrainerError(f"the training process {how}"), phase=self._phase, step=self._step
        )
        failure["traceback"] = "\n".join(_tail(log, LOG_TAIL_LINES))
        return outcome_document(ExitCode.INTERNAL_ERROR, failure=failure)

    def _finish(self, outcome: dict[str, Any]) -> ExitCode:
        code = ExitCode(outcome["exit_code"])
        result = {
            "schema": RESULT_SCHEMA, "job_id": self._job.identifier(), "attempt": self._attempt,
            "sdk": __version__, **outcome,
        }  # fmt: skip
        self._keep_result(result)
        self._flush_progress(now=True)
        kinds = {"succeeded": "job.succeeded", "canceled": "job.canceled", "interrupted": "job.interrupted"}
        outputs = result.get("outputs") or []
        told = {"count": len(outputs), "bytes": sum(each["bytes"] for each in outputs)}
        kind = kinds.get(str(outcome["status"]), "job.failed")
        self._say(kind, status=outcome["status"], code=int(code), outputs=told, failure=outcome.get("failure"))
        delivered = self._sink.close(self._seconds_to_deliver())
        if not delivered:
            self._console.lines([f"not every event was delivered; they are kept in {self._folder}"])
        self._console.lines(_last_words(result, self._layout))
        return code

    def _keep_result(self, result: Mapping[str, Any]) -> None:
        """Write the result and the report; a disk that takes neither must not keep the end from being told."""
        try:
            write_json(self._layout.result, result)
            write_report(self._layout, result)
        except Exception as error:  # noqa: BLE001 - the exit code and the terminal event are still to come
            self._console.lines([f"warning: the result or the report is not kept: {error}"])

    def _seconds_to_deliver(self) -> float:
        """How long to wait for the control plane: after a stop, no longer than the grace allows."""
        seconds = number_from_environment("UPLOAD_WAIT_SECONDS", 15.0)
        if self._stop is None:
            return seconds
        left = number_from_environment("GRACE_SECONDS", 30.0) - (time.monotonic() - self._stopped_at)
        return max(0.0, min(seconds, left - LAST_SECONDS))

    @property
    def _outcome_file(self) -> Path:
        return self._folder / "outcome-0.json"


def _receive(connection: socket.socket) -> bytes:
    """What the rank said, empty at its end; one killed with a request unread resets the connection."""
    try:
        return connection.recv(65536)
    except ConnectionError:
        return b""


def _last_words(result: Mapping[str, Any], layout: JobDirectory) -> list[str]:
    lines = [
        f"{result['job_id']}: {status_of(ExitCode(result['exit_code']))} (exit code {result['exit_code']})"
    ]
    failure = result.get("failure")
    if failure:
        lines.append(f"error: {failure['message']}")
        lines += [f"  {line}" for line in str(failure.get("traceback", "")).splitlines()[-LOG_TAIL_LINES:]]
    if result["status"] == "interrupted":
        lines.append("run the same command again to go on from the last checkpoint")
    seconds = sum((result.get("timings") or {}).values())
    lines.append(f"time in phases {seconds_text(seconds)}; report: {layout.report}")
    return lines


def _rank_environment() -> dict[str, str]:
    """The rank's environment: no hub access, no thread pools behind its back, output at once."""
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **quiet}


def _end_session(leader: int) -> None:
    """Kill what is left of a rank's session: loader workers must not outlive it."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def _signal_text(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _tail(path: Path, lines: int) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-lines:] if path.exists() else []
