"""Owns the shape of ``result.json``, as pydantic classes: how an attempt ended. It must not know who writes it.

What a trainer and the phases found out stands beside the keys that are named here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from app_trainer_sdk.describe import JSON_SCHEMA_DIALECT
from app_trainer_sdk.schemas.event import CODES, Count, Failure, Place, Seconds

SCHEMA = "app.trainer.result/v1"


class Output(BaseModel):
    """A folder that was handed over."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    path: str = Field(description="Below the job's directory.")
    bytes: Count
    sha256: str = Field(description="Over names and contents of its files.")
    stored: bool | None = Field(None, description="Uploaded and confirmed; absent where nothing is uploaded.")


class Stop(BaseModel):
    """Who asked to stop, and what the grace was spent on: checkpoint, upload, terminal, kill."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    reason: Literal["interrupted", "deadline", "canceled", "fenced"]
    checkpoint: bool = Field(description="False where it was given up.")
    grace_seconds: Seconds
    seconds: dict[str, Seconds]
    share_of_grace: dict[str, float]


class TimeSplit(BaseModel):
    """Where this start's time went; every second belongs to one activity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    wall_seconds: Seconds
    seconds: dict[str, float] = Field(description="By activity; they add up to the wall time.")


class Result(BaseModel):
    """How an attempt ended."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    version_name: Literal["app.trainer.result/v1"] = Field(alias="schema")
    job_id: str
    attempt: Place
    sdk: str
    status: Literal["succeeded", "interrupted", "canceled", "failed"]
    exit_code: Annotated[int, Field(json_schema_extra={"enum": CODES})]
    name: str = Field(description="Of the exit code.")
    failure: Failure | None = None
    step: Count | None = None
    outputs: list[Output] | None = None
    timings: dict[str, Seconds] | None = Field(None, description="By phase, in seconds.")
    time_split: TimeSplit | None = None
    data_wait: dict[str, JsonValue] | None = Field(
        None, description="Of all updates: seconds waited for data, their share, and by part of the way."
    )
    changed: list[dict[str, JsonValue]] | None = Field(None, description="What resumes were allowed to change.")
    stored: dict[str, Count] | None = Field(
        None, description="Bytes that were uploaded and confirmed: of artifacts, checkpoints and rows."
    )
    counters: dict[str, JsonValue] | None = None
    training: dict[str, JsonValue] | None = None
    optimizer: dict[str, JsonValue] | None = None
    replay: dict[str, JsonValue] | None = None
    stop: Stop | None = Field(None, description="Where somebody asked to stop.")


def result_schema() -> dict[str, Any]:
    """The JSON Schema of ``result.json``."""
    return {"$schema": JSON_SCHEMA_DIALECT, "$id": f"urn:{SCHEMA}", **Result.model_json_schema()}
