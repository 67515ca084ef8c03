"""Owns the document ``app.trainer.manifest/v1``: what a run says of itself. It must not know who gathers it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Setting(_Part):
    """One knob: what was asked, what it became, why."""

    requested: Any
    effective: Any
    why: str


class Package(_Part):
    """An installed distribution. ``digest`` is over the digests of its files, as recorded by its installer."""

    version: str
    digest: str | None


class Code(_Part):
    """What code ran.

    Digests of ``sdk`` and ``trainer`` are of source files. ``revision`` is told by the image, or by git;
    ``changed`` is whether files differed from it, null where nobody can tell. An image cannot know its
    own digest: the platform passes it in.
    """

    revision: str | None
    changed: bool | None
    image_digest: str | None
    trainer: str
    trainer_version: str | None
    trainer_digest: str | None
    sdk_digest: str


class Torch(_Part):
    """The torch of the ranks."""

    version: str
    git: str | None = None
    cuda: str | None = None
    hip: str | None = None
    cudnn: int | None = None


class Operation(_Part):
    """An optional operation that was tried on the device."""

    qualified: bool
    why: str


class Environment(_Part):
    """Where it ran. Empty where no rank came so far as to tell."""

    python: str
    implementation: str | None = None
    system: str | None = None
    machine: str | None = None
    processor: str | None = None
    torch: Torch | None = None
    driver: str | None = None
    devices: list[str] = Field(default_factory=list)
    kernels: str | None = None
    ranks: int = 1
    threads: int | None = None
    variables: dict[str, str] = Field(default_factory=dict)
    operations: dict[str, Operation] = Field(default_factory=dict)


class Determinism(_Part):
    """What decides whether equal inputs give equal bits. All randomness follows from ``seed`` and position."""

    seed: int | None
    flags: dict[str, bool | str] = Field(default_factory=dict)


class Weights(_Part):
    """One set of base weights. ``identity`` is what checkpoints compare; the rest as far as it is known."""

    identity: str
    revision: str | None = None
    source: str | None = None
    sha256: str | None = None
    bytes: int | None = None


class InputFile(_Part):
    """One input, its URL without what may be secret."""

    url: str
    sha256: str | None = None
    bytes: int | None = None


class Dataset(_Part):
    """The training split as the trainer read it."""

    fingerprint: str | None = None
    rows: int | None = None


class PhaseTime(_Part):
    """Time and memory of one phase of one attempt and rank."""

    attempt: int
    rank: int
    phase: str
    seconds: float
    peak_bytes: int
    reused: bool


class Output(_Part):
    """A folder that was handed over; ``sha256`` is over names and contents of all files in it."""

    name: str
    path: str
    bytes: int
    sha256: str
    stored: bool | None = None


class Reload(_Part):
    """How a user loads the artifact: lines of Python, ``folder`` being where it lies."""

    artifact: str
    folder: str
    python: str
    asked_again: bool


class Manifest(_Part):
    """A run, whole: what was asked, what it became, by which code, where, and what came of it."""

    schema_: Literal["app.trainer.manifest/v1"] = Field("app.trainer.manifest/v1", alias="schema")
    sdk_version: str
    job_id: str
    attempt: int
    status: str
    exit_code: int
    ended: str
    job: dict[str, Any]
    cut: list[str]
    settings: dict[str, Setting] = Field(default_factory=dict)
    changed: list[dict[str, Any]] = Field(default_factory=list)
    determinism: Determinism
    code: Code
    packages: dict[str, Package]
    environment: Environment
    weights: dict[str, Weights] = Field(default_factory=dict)
    inputs: dict[str, InputFile] = Field(default_factory=dict)
    dataset: Dataset = Field(default_factory=Dataset)
    timings: dict[str, float] = Field(default_factory=dict)
    phases: list[PhaseTime] = Field(default_factory=list)
    outputs: list[Output] = Field(default_factory=list)
    stored: dict[str, int] | None = None
    reload: Reload | None = None
    failure: dict[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return self.model_dump(mode="json", by_alias=True)


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Manifest.model_json_schema()}
