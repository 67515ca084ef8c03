"""Owns what of a run is uploaded when, and what that makes of its outcome: no success before all is confirmed.

It must not know how a run goes, nor how bytes travel.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, final

from app_trainer_sdk.console import Console
from app_trainer_sdk.errors import ExitCode, Fenced, StopRequested, TrainerError, UploadFailed
from app_trainer_sdk.job import Job
from app_trainer_sdk.narrator import Narrator
from app_trainer_sdk.outcome import describe_failure, outcome_document
from app_trainer_sdk.outputs.checkpoints import ROW_FILES, CheckpointUploads
from app_trainer_sdk.outputs.sender import Sender, build_sender
from app_trainer_sdk.paths import JobDirectory
from app_trainer_sdk.redaction import redact
from app_trainer_sdk.stops import Stops

#: The run's own rows go beside the artifacts where somebody grants it: curves are not events.
ROWS_SECONDS = 30.0
#: Keys of an outcome that another outcome has of its own.
HEAD = ("status", "exit_code", "name", "failure")


@final
class Handover:
    """Uploads of one attempt.

    Args:
        job: says what is wanted.
        layout: where things lie.
        attempt: fencing token of its grants.
        narrator: says what is stored.
        stops: wishes to stop, and the share of the grace that uploads have.
        console: what a person sees.
    """

    def __init__(
        self, job: Job, layout: JobDirectory, *, attempt: int, narrator: Narrator, stops: Stops,
        console: Console,
    ) -> None:  # fmt: skip
        self._job = job
        self._layout = layout
        self._narrator = narrator
        self._stops = stops
        self._console = console
        self._sender = build_sender(job, attempt)
        self._checkpoints: CheckpointUploads | None = None
        if self._sender is not None and job.outputs.checkpoints:
            self._checkpoints = CheckpointUploads(
                self._sender.beside_training(), layout.root / ".uploads", rows=layout.root
            )

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take one message of a rank: a checkpoint that was saved is sent."""
        if self._checkpoints is not None and message.get("kind") == "checkpoint":
            self._checkpoints.saved(self._layout.checkpoints / str(message["name"]))

    def tell(self) -> None:
        """Say what was stored meanwhile."""
        for each in self._checkpoints.news() if self._checkpoints is not None else ():
            if isinstance(each, Fenced | StopRequested):
                self._stops.order("fenced" if isinstance(each, Fenced) else "gone")
            elif isinstance(each, BaseException):
                self._console.lines([f"warning: a checkpoint is not uploaded: {redact(str(each))}"])
            else:
                self._narrator.say("job.checkpoint", status="running", checkpoint=each)

    def drop(self) -> None:
        """Upload nothing more."""
        if self._checkpoints is not None:
            self._checkpoints.drop()

    def finish(self, outcome: Mapping[str, Any]) -> dict[str, Any]:
        """Upload what is due at the end; the outcome as it is then."""
        if self._sender is None:
            return dict(outcome)
        if outcome["status"] == "succeeded":
            self.drop()
            return self._hand_over(outcome, self._sender)
        if outcome["status"] != "canceled" and outcome["exit_code"] != ExitCode.FENCED:
            self._finish_checkpoints(self._sender)
        self.drop()
        self.tell()
        return {**outcome, **self._stored({})}

    def _finish_checkpoints(self, sender: Sender) -> None:
        """The next machine goes on from the last one: it is sent as far as the grace allows."""
        if self._checkpoints is None:
            return
        until = time.monotonic() + sender.tools.effort.give_up_seconds
        with self._stops.spending("upload"):
            whole = self._checkpoints.finish(
                lambda: time.monotonic() < until and self._stops.seconds_to_upload() > 0
            )
        if not whole:
            self._console.lines(["the last checkpoint is not uploaded; it is kept on this disk"])

    def _hand_over(self, outcome: Mapping[str, Any], sender: Sender) -> dict[str, Any]:
        self._narrator.hear({"kind": "phase", "name": "upload"})
        began, stored = time.monotonic(), dict[str, int]()
        facts = {name: value for name, value in outcome.items() if name not in HEAD}
        outputs = [{**each, "stored": False} for each in outcome.get("outputs") or ()]
        code, failure = ExitCode.SUCCEEDED, {}
        try:
            with self._stops.spending("upload"):
                self._send_artifacts(outputs, sender, stored)
                self._send_rows(sender, stored)
        except (TrainerError, StopRequested) as error:
            failure = {"failure": describe_failure(error, phase="upload", step=self._narrator.step)}
            code = ExitCode(failure["failure"]["code"])
        timings = {**(outcome.get("timings") or {}), "upload": time.monotonic() - began}
        told = {**facts, "outputs": outputs, "timings": timings, **self._stored(stored), **failure}
        return outcome_document(code, **told)

    def _send_artifacts(self, outputs: list[dict[str, Any]], sender: Sender, stored: dict[str, int]) -> None:
        """All that can be sent is, required ones first; then what is missing of those is told.

        Raises:
            UploadFailed: one that is required is not confirmed.
        """
        made = {each["name"] for each in outputs}
        required = self._job.outputs.required or sorted(made)
        wrong = [UploadFailed(f"there is no artifact {name}") for name in required if name not in made]
        for output in sorted(outputs, key=lambda each: each["name"] not in required):
            name = output["name"]
            try:
                size = sender.send(
                    "artifact", name, self._layout.artifacts / name, check=self._check, told=self._narrator
                )
            except UploadFailed as error:
                self._console.lines([f"warning: {name} is not uploaded: {redact(str(error))}"])
                wrong += [error] if name in required else []
                continue
            output["stored"] = True
            stored["artifacts"] = stored.get("artifacts", 0) + size
            facts = {key: output[key] for key in ("name", "bytes", "sha256", "stored")}
            self._narrator.say("job.artifact", status="running", artifact=facts)
        if wrong:
            raise wrong[0]

    def _send_rows(self, sender: Sender, stored: dict[str, int]) -> None:
        """Rows for whoever looks at the run later; a job does not fail for want of them."""
        paths = [each for each in ROW_FILES if (self._layout.root / each).is_file()]
        if self._job.outputs.grant_url is None or not paths:
            return
        try:
            stored["rows"] = sender.patient_for(ROWS_SECONDS).send(
                "rows", "run", self._layout.root, check=self._check, told=self._narrator, paths=paths
            )
        except UploadFailed as error:
            self._console.lines([f"warning: the run's rows are not uploaded: {redact(str(error))}"])

    def _check(self) -> None:
        """A wish to stop leaves uploads their share of the grace."""
        if self._stops.asked is not None and self._stops.seconds_to_upload() <= 0:
            raise self._stops.asked

    def _stored(self, stored: Mapping[str, int]) -> dict[str, Any]:
        """Bytes that are stored for the job, for whoever pays for them."""
        there = {**stored, "checkpoints": self._checkpoints.bytes if self._checkpoints is not None else 0}
        return {"stored": {name: size for name, size in there.items() if size}}
