"""Owns the shape of the ``plan`` document, as pydantic classes: the contract with whoever picks a card.

Imported for ``--schema`` and by tests alone. This file must not know how the document is made. A key is added
without a new version; a key that goes, or changes its meaning, makes ``v2``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from app_trainer_sdk.describe import JSON_SCHEMA_DIALECT
from app_trainer_sdk.plan_command import SCHEMA

Bytes = Annotated[int, Field(ge=0)]
Phase = Literal["load", "forward", "backward", "step", "evaluate", "export"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class CardFacts(_Part):
    """A card of the catalog, or one named by its memory."""

    name: str
    title: str
    memory_bytes: Bytes = Field(description="What torch reports as the total.")
    architecture: str = Field(description="CUDA compute capability or gfx name; empty when not known.")
    bf16: bool
    context_bytes: Bytes
    library_bytes: Bytes


class Knobs(_Part):
    """One way to make the same update."""

    microbatch: Annotated[int, Field(ge=1)]
    gradient_accumulation_steps: Annotated[int, Field(ge=1)]
    gradient_checkpointing: bool
    optim_8bit: bool
    mixed_precision: Literal["no", "bf16", "fp16"]


class ConsideredWay(Knobs):
    """What became of one way."""

    relative_time: float = Field(description="Against one large microbatch without savings; declared.")
    needed_bytes: Bytes
    verdict: str
    at_least: bool = Field(description="Whether the bytes are those of a smaller microbatch that did not fit.")
    estimated: bool = Field(description="Whether the bytes follow from two other microbatches; rules out only.")


class MemoryTerms(_Part):
    """What the card has to hold, term by term."""

    peak_bytes: Bytes = Field(description="Predicted.")
    rounding_bytes: Bytes = Field(description="Predicted: the allocator hands out multiples of 512.")
    exchange_bytes: Bytes = Field(description="Predicted: DDP's copy of the gradients, with several ranks.")
    library_bytes: Bytes = Field(description="Declared: workspaces of cuBLAS.")
    correction_bytes: int = Field(description="Measured: what a pilot held beyond what is predicted for it.")
    context_bytes: Bytes = Field(description="Declared: the driver's context and loaded kernels.")
    headroom_bytes: Bytes = Field(description="Declared: the allocator's gaps.")
    needed_bytes: Bytes = Field(description="The sum of the seven.")
    available_bytes: Bytes
    left_bytes: int = Field(description="Negative where it does not fit.")


class PredictionFacts(_Part):
    """The peak of two updates, an evaluation and an export."""

    peak_bytes: Bytes
    peak_in: str = Field(description="One of phases, or prepare and the name of a phase before training.")
    by_owner: dict[str, Bytes] = Field(description="At the fullest instant.")
    phases: dict[Phase, Bytes] = Field(description="The fullest instant of each; export is an upper bound.")
    preparation: dict[str, Bytes] = Field(description="The fullest instant of each phase before training.")
    rounding_bytes: Bytes
    checkpoint_bytes: Bytes
    extrapolated: bool = Field(description="Whether the depth follows from two and three blocks.")
    residual: float | None = Field(description="How far that line is off at one block, as a share.")
    grade: str


class KnobFacts(_Part):
    """One setting: what was asked, what it became, why."""

    requested: JsonValue
    effective: JsonValue
    why: str


class Sharding(_Part):
    """How many cards would have to share weights, gradients and optimizer state."""

    state_bytes: Bytes
    cards: Annotated[int, Field(ge=2)] | None = Field(description="Null where no number would do.")


class Nearest(_Part):
    """What would fit instead."""

    settings: dict[str, JsonValue] | None = Field(description="Explicit settings to change on this card.")
    card: str | None = Field(description="The smallest larger card that fits the job as it is.")


class UpdateSeconds(_Part):
    """What an update takes."""

    seconds: float
    grade: str


class PilotFacts(_Part):
    """The pilot that was used."""

    source: str
    device: str


class CardPlan(_Part):
    """The plan for one card."""

    card: CardFacts
    fits: bool
    precision: Literal["no", "bf16", "fp16"]
    chosen: Knobs | None = Field(description="The fastest way that fits.")
    relative_time: float | None
    memory: MemoryTerms = Field(description="Of the way chosen, or of the leanest when none fits.")
    prediction: PredictionFacts
    considered: list[ConsideredWay] = Field(description="In the order of preference, up to the one chosen.")
    settings: dict[str, KnobFacts]
    grade: str = Field(description="How the memory is known.")
    update_seconds: UpdateSeconds | None = Field(description="Only where a pilot ran on such a card.")
    price_per_hour: float | None = Field(description="Of one card, as the caller said; none is known here.")
    sharding: Sharding | None = Field(None, description="Only where it does not fit.")
    nearest: Nearest | None = Field(None, description="Only where it does not fit.")
    refused: str | None = Field(None, description="Why such a card cannot compute what was asked for.")


class PlanDocument(_Part):
    """Whether a job fits, on which cards and with which settings."""

    version_name: Literal["app.trainer.fit/v1"] = Field(alias="schema")
    sdk_version: str
    grade: str
    fits: bool = Field(description="On any of the cards.")
    trainer: str
    trainer_version: str
    model: str
    method: str
    parameters: Bytes
    trained_parameters: Bytes
    blocks: Bytes
    replicas: Annotated[int, Field(ge=1)]
    global_batch: Annotated[int, Field(ge=1)]
    not_predicted: list[str] = Field(description="Phases before training of which the trainer tells nothing.")
    cards: list[CardPlan]
    pilot: PilotFacts | None = Field(description="Null where there is none of this job.")
    seconds: float


def document_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return {"$schema": JSON_SCHEMA_DIALECT, "$id": f"urn:{SCHEMA}", **PlanDocument.model_json_schema()}
