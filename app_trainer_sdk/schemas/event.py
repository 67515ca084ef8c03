"""Owns the shape of events, as pydantic classes: the contract with whoever hears them.

It must not know how events are made. A key is added without a new version; a key that goes, or changes its
meaning, makes ``v: 2``. To fit into 4,096 bytes an event may lose any key that is not of the envelope.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from app_trainer_sdk.describe import JSON_SCHEMA_DIALECT
from app_trainer_sdk.errors import ExitCode

Count = Annotated[int, Field(ge=0)]
Place = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]
Origin = Literal["user", "system", "resource"]
CODES = sorted(int(code) for code in ExitCode)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Phase(_Part):
    """Where the job is; a trainer's own phases have no index."""

    name: str
    index: Place | None = None
    count: Place | None = None


class Progress(_Part):
    """How far training is."""

    fraction: Annotated[float, Field(ge=0, le=1)] = Field(description="1 only when all is done.")
    step: Count
    total: Count
    eta_s: Seconds | None = Field(description="By this attempt's updates; null before there are two.")


class Checkpoint(_Part):
    """A checkpoint; on the disk first, and again when it is uploaded."""

    name: str = Field(description="Its folder, which is also the name in its grants.")
    step: Count
    bytes: Count
    seconds: Seconds | None = None
    stored: Literal[True] | None = Field(None, description="Uploaded and confirmed, its manifest too.")
    identity: str | None = Field(None, description="Of an uploaded one: what a job says under resume.")


class Artifact(_Part):
    """An artifact; on the disk first, and again when it is uploaded."""

    name: str
    path: str | None = Field(None, description="Below the job's directory.")
    bytes: Count
    sha256: str = Field(description="Over `name\\0sha256\\n` of each of its files, by name.")
    stored: Literal[True] | None = Field(None, description="Uploaded and confirmed.")


class Spread(_Part):
    """A number since the last progress that was acknowledged; null where it was not finite."""

    last: float | None
    mean: float | None
    min: float | None
    max: float | None
    n: Count = Field(description="Finite values, of which mean, min and max are.")


class Performance(_Part):
    """Of the last update, and of all that this start made."""

    step_s: Seconds | None = None
    data_wait_s: Seconds | None = None
    data_wait_frac: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="Share of the time of this start's updates that waited for data."
    )
    step_s_p50: Seconds | None = Field(None, description="Median of this start's last 256 updates.")
    step_s_p95: Seconds | None = Field(None, description="95 of 100 of them took no longer.")
    examples_s: Seconds | None = Field(None, description="Examples a second in them, of all ranks.")


class Memory(_Part):
    """Of rank 0, in MiB; on a machine without a card only its resident memory."""

    rss_mib: Count | None = None
    peak_reserved_mib: Count | None = Field(None, description="Most that torch reserved since the phase began.")
    driver_mib: Count | None = Field(None, description="In use on the card, by whomever, now.")


class Failure(_Part):
    """Why a start ended otherwise than by being done."""

    code: Annotated[int, Field(json_schema_extra={"enum": CODES})]
    name: str
    origin: Origin
    retry: str = Field(description="What kind of another try makes sense.")
    message: str
    phase: str | None = None
    step: Count | None = None
    exception: str | None = None
    traceback: str | None = Field(None, description="Its tail.")
    problems: list[dict[str, str]] | None = Field(None, description="Of a job that cannot be used.")


class Outputs(_Part):
    """What was handed over."""

    count: Count
    bytes: Count
    stored_bytes: Count | None = Field(
        None, description="Of all that was uploaded and confirmed: artifacts, checkpoints and rows."
    )
    manifest_sha256: str | None = None


class Envelope(_Part):
    """What every event has."""

    v: Literal[1]
    id: str = Field(description="job.attempt.seq: the idempotency key, also in the headers.")
    job_id: str
    attempt: Place = Field(description="Fencing token: only the newest attempt speaks for the job.")
    instance: str = Field(description="Random name of the process: a new one fences the old one of an attempt.")
    seq: Place = Field(description="Rises within an attempt, with gaps.")
    time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    uptime_s: Seconds = Field(description="Since this start began, by a clock that is never set.")


class _Running(Envelope):
    status: Literal["running"]


class Accepted(_Running):
    """The job was taken; the first event of a start."""

    type: Literal["job.accepted"]
    sdk: str | None = None


class Planned(_Running):
    """Every number is known."""

    type: Literal["job.plan"]
    updates: Count | None = None
    examples_per_update: Count | None = None
    examples_seen: Count | None = None
    resumed: Count | None = Field(None, description="Update of the checkpoint that training goes on from.")
    settings: dict[str, JsonValue] | None = Field(None, description="As effective.")
    data: dict[str, JsonValue] | None = None
    changed: list[str] | None = Field(None, description="Fields that a resume was allowed to change.")


class PhaseEdge(_Running):
    """A phase begins or ends; its end has its row of memory and time."""

    type: Literal["job.phase"]
    phase: Phase | None = None
    edge: Literal["start", "end"] | None = None
    row: dict[str, JsonValue] | None = None


class Progressed(_Running):
    """A snapshot; a later one makes an unsent earlier one worthless."""

    type: Literal["job.progress"]
    phase: Phase | None = None
    progress: Progress | None = None
    metrics: dict[str, Spread | float | None] | None = None
    nonfinite: list[str] | None = Field(None, description="Names that were not finite at least once.")
    perf: Performance | None = None
    memory: Memory | None = None


class Evaluated(_Running):
    """An evaluation; never merged with another."""

    type: Literal["job.evaluation"]
    step: Count | None = None
    split: str | None = None
    metrics: dict[str, float | None] | None = None
    nonfinite: list[str] | None = None


class Saved(_Running):
    """A checkpoint is whole on the disk, or (``stored``) uploaded, so that any machine can go on from it."""

    type: Literal["job.checkpoint"]
    checkpoint: Checkpoint | None = None


class Made(_Running):
    """An artifact is whole on the disk, or (``stored``) uploaded and confirmed."""

    type: Literal["job.artifact"]
    artifact: Artifact | None = None


class Recovered(_Running):
    """Memory ran out, and the same update was made with a smaller microbatch."""

    type: Literal["job.recovered"]
    step: Count | None = None
    microbatch: Place | None = None
    next: Place | None = None
    error: str | None = None
    inputs: JsonValue = None


class Stalled(_Running):
    """Nothing has moved for long; the stacks of all threads are in the log."""

    type: Literal["job.stalled"]
    phase: Phase | None = None
    step: Count | None = None
    seconds: Seconds | None = None


class _Ended(Envelope):
    code: Annotated[int, Field(json_schema_extra={"enum": CODES})]
    outputs: Outputs | None = None
    failure: Failure | None = None
    progress: Progress | None = None


class Interrupted(_Ended):
    """This start ends, and the job does not: another goes on, or (76) does so already."""

    type: Literal["job.interrupted"]
    status: Literal["interrupted"]


class Succeeded(_Ended):
    """Terminal: all work is done."""

    type: Literal["job.succeeded"]
    status: Literal["succeeded"]


class Failed(_Ended):
    """Terminal, unless the control plane expects another attempt."""

    type: Literal["job.failed"]
    status: Literal["failed"]


class Canceled(_Ended):
    """Terminal: somebody did not want the job any more."""

    type: Literal["job.canceled"]
    status: Literal["canceled"]


Event = Annotated[
    Accepted | Planned | PhaseEdge | Progressed | Evaluated | Saved | Made | Recovered | Stalled
    | Interrupted | Succeeded | Failed | Canceled,
    Field(discriminator="type"),
]  # fmt: skip
#: In the order in which a run may say them first.
TYPES: tuple[type[Envelope], ...] = (
    Accepted, PhaseEdge, Planned, Progressed, Evaluated, Saved, Recovered, Stalled, Made, Interrupted,
    Succeeded, Failed, Canceled,
)  # fmt: skip


def event_schema() -> dict[str, Any]:
    """The JSON Schema of one event."""
    schema = TypeAdapter(Event).json_schema()
    return {"$schema": JSON_SCHEMA_DIALECT, "$id": "urn:app.trainer.event/v1", "title": "Event", **schema}
