"""Owns the job document ``app.trainer.job/v1``: what it may say, and by which name it goes.

A job says what to do and nothing of where: variables of one start live in the environment. This file must not
know how a document is read, nor what its trainer thinks of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from app_trainer_sdk.job.asked import what_is_asked
from app_trainer_sdk.job.places import place, receiver, relative

JOB_SCHEMA = "app.trainer.job/v1"
DERIVED_NAME = re.compile(r"j_[0-9a-f]{16}")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Place = Annotated[str, Field(min_length=1), AfterValidator(place)]
Receiver = Annotated[str, Field(pattern=r"^https?://"), AfterValidator(receiver)]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)


class ArchiveLimits(_Document):
    """What an archive may become; one that goes beyond is refused."""

    max_files: Annotated[int, Field(ge=1)] = 100_000
    max_bytes: Annotated[int, Field(ge=1)] = 64 << 30
    max_ratio: Annotated[float, Field(ge=1)] = 200.0


class FileReference(_Document):
    """One file: where it is (a path, ``file:`` or ``https:`` URL) and, when known, its size and digest.

    With a ``kind`` it is an archive, and the trainer gets the folder that it is unpacked to.
    """

    url: Place
    size: Annotated[int, Field(ge=0)] | None = None
    sha256: Sha256 | None = None
    kind: Literal["zip", "tar"] | None = None
    limits: ArchiveLimits | None = None


class WeightFile(_Document):
    """One file of a set of weights: its name in the set, and mirrors in the order of preference."""

    path: Annotated[str, Field(min_length=1), AfterValidator(relative)]
    urls: Annotated[list[Place], Field(min_length=1)]
    size: Annotated[int, Field(ge=0)] | None = None
    sha256: Sha256 | None = None


class WeightsReference(_Document):
    """Base weights: a local folder or file (``url``), files with mirrors, or a Hub repository's revision."""

    url: Place | None = None
    size: Annotated[int, Field(ge=0)] | None = None
    sha256: Sha256 | None = None
    files: Annotated[list[WeightFile], Field(min_length=1)] | None = None
    hub: Annotated[str, Field(pattern=r"^[\w.-]+/[\w.-]+$")] | None = None
    revision: str | None = None


class Outputs(_Document):
    """What must be handed over for the job to count as succeeded, and where to.

    With ``grant_url`` (the control plane grants uploads) or ``put`` (long-lived URLs by ``artifact/file``) a
    job has succeeded once each required artifact was confirmed there; where none is named, each that is made.
    ``checkpoints``: they are uploaded too, while training goes on.
    """

    required: list[Name] = Field(default_factory=list)
    grant_url: Receiver | None = None
    put: dict[str, Receiver] | None = None
    checkpoints: bool | None = None


class Resume(_Document):
    """A checkpoint that another machine uploaded: an empty disk goes on from it.

    ``files`` are all of its files, their paths below its folder or with it (``step-00000100/manifest.json``),
    and those of the best checkpoint where that is another. ``identity`` is the SHA-256 of ``identity.json``.
    """

    step: Annotated[int, Field(ge=0)]
    identity: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None
    files: Annotated[list[WeightFile], Field(min_length=1)]


class Callbacks(_Document):
    """Where events go. In ``notify`` mode nothing in an answer is obeyed."""

    url: Receiver
    mode: Literal["notify", "control"] = "notify"


class Job(_Document):
    """A job, normalised: every file is an object, every default of the document is filled in."""

    schema_: Literal["app.trainer.job/v1"] = Field("app.trainer.job/v1", alias="schema")
    job_id: Name | None = None
    trainer: Annotated[str, Field(min_length=1)]
    model: Annotated[str, Field(min_length=1)]
    method: Annotated[str, Field(min_length=1)] | None = None
    hyperparameters: dict[str, Any] = Field(default_factory=dict)
    weights: dict[Name, WeightsReference] = Field(default_factory=dict)
    inputs: dict[Name, FileReference] = Field(default_factory=dict)
    outputs: Outputs = Field(default_factory=Outputs)
    resume: Resume | None = None
    callbacks: Callbacks | None = None
    allow: list[Literal["pickle", "remote_code"]] | None = None

    @property
    def allowed(self) -> frozenset[str]:
        """Formats that can run code when they are read, and may be read all the same."""
        return frozenset(self.allow or ())

    def document(self) -> dict[str, Any]:
        """The job as JSON, without what was not said."""
        return self.model_dump(by_alias=True, exclude_none=True)

    def identifier(self) -> str:
        """``job_id``, or a digest of what the job asks for (callbacks are how it is told, not what it is)."""
        if self.job_id:
            return self.job_id
        said = what_is_asked(self.document())
        asked = {key: value for key, value in said.items() if key not in ("callbacks", "job_id")}
        canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"))
        return "j_" + hashlib.sha256(canonical.encode()).hexdigest()[:16]

    def kept_here(self) -> Job:
        """The same job that uploads nothing and begins anew, as a pilot does."""
        outputs = Outputs(required=self.outputs.required)
        return self.model_copy(update={"outputs": outputs, "resume": None})

    def under_name(self, name: str) -> Job:
        """The same job as one that is called ``name`` already, when both names are digests of what is asked."""
        digests = DERIVED_NAME.fullmatch(name) and DERIVED_NAME.fullmatch(self.identifier())
        return self.model_copy(update={"job_id": name}) if digests else self
