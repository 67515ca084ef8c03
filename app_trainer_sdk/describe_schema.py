"""Owns the shape of the ``describe`` document, as pydantic classes: the contract with the control plane.

Imported for ``--schema`` and by tests alone, so that printing the document does not pay for it. This file must
not know how the document is made. A key is added without a new version; a key that goes, or changes its
meaning, makes ``v2``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from app_trainer_sdk.describe import JSON_SCHEMA_DIALECT, SCHEMA

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Grade = Literal["declared", "predicted", "measured"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class InputFacts(_Part):
    """An input a job gives by name, under ``inputs``."""

    description: str
    required: bool = Field(description="Whether a job without it is refused.")


class PhaseFacts(_Part):
    """A part of a job with a memory row of its own. Phases are told in the order they first run."""

    name: str
    kind: Literal["built_in", "preparation"] = Field(
        description="Who does it: the SDK for every trainer, or this trainer before training."
    )
    description: str


class RequirementFacts(_Part):
    """What the machine needs besides device memory; null where no need is stated."""

    host_memory_gib: Positive | None
    disk_gib: Positive | None
    shared_memory_mib: Count | None = Field(description="MiB of /dev/shm.")
    compute_capability: str | None = Field(description="Least CUDA compute capability, such as 8.0.")
    driver: str | None = Field(description="Least NVIDIA driver version.")


class PackageSource(_Part):
    """Weights inside an installed Python package."""

    kind: Literal["package"]
    package: str
    file: str | None
    sha256: str | None


class HubSource(_Part):
    """Weights in a Hub repository, at the revision beside."""

    kind: Literal["hub"]
    repository: str


class WeightFacts(_Part):
    """One set of base weights."""

    revision: str = Field(description="What identifies the content: a Hub commit or a digest.")
    size_bytes: Count | None = Field(description="Bytes to download; null when unknown.")
    sources: list[PackageSource | HubSource] = Field(description="Places, in the order they are tried.")


class MethodFacts(_Part):
    """A way to train one model."""

    defaults: dict[str, JsonValue] = Field(
        description="Every setting a job gets when it says nothing, valid against the trainer's "
        'hyperparameters. "auto" is decided by the plan, which knows the machine.'
    )


class FloorFacts(_Part):
    """The least device memory at which a method runs. All null when nobody has said."""

    gib: Positive | None = Field(description="GiB, context and headroom included; null when no floor is known.")
    grade: Grade | None = Field(
        description="Somebody wrote it down, the planner computed it, or a run saw it; null when no floor is "
        "known. A floor without evidence is declared."
    )
    evidence: dict[str, JsonValue] = Field(description="How it came about: settings, card, date, SDK version.")


class ModelFacts(_Part):
    """A base model and what training it takes."""

    name: str = Field(description="The word a job uses as model.")
    title: str
    parameters: int = Field(ge=0)
    licence: str | None = Field(description="SPDX name of the weights' licence; null when not stated.")
    weights: dict[str, WeightFacts] = Field(description="By role; base is the usual one.")
    weights_bytes: int | None = Field(ge=0, description="Bytes of all roles; null when one is unknown.")
    methods: dict[str, MethodFacts] = Field(description="By method, the default one first.")
    floors: dict[str, FloorFacts] = Field(description="By method, and for inference with the artifact.")


class TrainerFacts(_Part):
    """A trainer."""

    name: str = Field(description="The word a job uses as trainer.")
    version: str = Field(description="Rises when the same job would train differently.")
    methods: list[str] = Field(min_length=1, description="Ways to train; the first is the default.")
    inputs: dict[str, InputFacts]
    phases: list[PhaseFacts]
    artifacts: dict[str, list[str]] = Field(
        description="By method, the folders handed over at the end; the first is the one replay loads."
    )
    requirements: RequirementFacts
    hyperparameters: dict[str, Any] = Field(
        description="JSON Schema of a job's hyperparameters, for every model and method of this trainer. Its "
        "defaults are general: the models' own defaults stand in their methods. unit says what a number counts."
    )
    models: list[ModelFacts] = Field(min_length=1)


class DescribeDocument(_Part):
    """What a trainer container offers."""

    version_name: Literal["app.trainer.describe/v1"] = Field(alias="schema")
    sdk_version: str
    trainers: list[TrainerFacts] = Field(description="Sorted by name.")


def document_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return {"$schema": JSON_SCHEMA_DIALECT, "$id": f"urn:{SCHEMA}", **DescribeDocument.model_json_schema()}
