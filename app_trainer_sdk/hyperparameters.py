"""Owns the settings every trainer shares: bounds, default, unit and one sentence for each.

Trainer images subclass :class:`Hyperparameters` to add their own. Where the right value depends on workload
and hardware the default is ``"auto"``: ``planning/resolve.py`` decides it and says why. This file must not
know any device, and derives no number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app_trainer_sdk.errors import BadJob, Problem
from app_trainer_sdk.validation import explain

Auto = Literal["auto"]
PositiveCount = Annotated[int, Field(ge=1, le=1_000_000_000)]
BatchCount = Annotated[int, Field(ge=1, le=1_048_576)]


def setting(default: Any, description: str, *, unit: str = "", **bounds: Any) -> Any:
    """A field of a hyperparameters class.

    Args:
        default: the value used when the job is silent; ``"auto"`` leaves it to the plan.
        description: one sentence for people, shown by ``describe``.
        unit: what the number counts (``updates``, ``examples``, ``tokens``), empty for pure numbers.
        bounds: pydantic's ``ge``, ``gt``, ``le``, ``lt``, ``pattern``.
    """
    if "\n" in description or not description.endswith("."):
        raise TypeError(f"describe the setting in one sentence that ends with a full stop, not {description!r}")
    extra: dict[str, Any] | None = {"unit": unit} if unit else None
    return Field(default, description=description, json_schema_extra=extra, **bounds)


class Hyperparameters(BaseModel):
    """What a user may choose about a training run. Unknown names, NaN and wrong types are refused."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_default=True,
        defer_build=True,
        use_attribute_docstrings=False,
    )  # fmt: skip

    # How long.
    updates: PositiveCount | Auto = setting(
        "auto", "Optimizer steps to make; give this or epochs.", unit="updates"
    )
    epochs: Annotated[int, Field(ge=1, le=1_000_000)] | Auto = setting(
        "auto", "Passes over the training split; give this or updates (3 when both are silent).", unit="epochs"
    )

    # How much at once.
    global_batch: BatchCount | Auto = setting(
        "auto", "Examples in one update, over all microbatches and ranks.", unit="examples"
    )
    microbatch: BatchCount | Auto = setting(
        "auto", "Examples that one forward and backward sees on one rank.", unit="examples"
    )
    gradient_accumulation_steps: BatchCount | Auto = setting(
        "auto", "Microbatches that one rank adds up before an update.", unit="microbatches"
    )

    # Which examples, and in which order.
    sampling: Literal["auto", "shuffled", "weighted", "sequential"] = setting(
        "auto",
        "Rows of an epoch: each once in random order, drawn with replacement by the dataset's weights, or each "
        "once as they stand.",
    )
    batching: Literal["mixed", "by_length", "by_group"] = setting(
        "mixed",
        "How an epoch is cut into global batches: as it comes, by similar length, or by group.",
    )

    # How far each step goes.
    optimizer: Literal["adamw", "sgd"] = setting("adamw", "The optimizer.")
    learning_rate: Annotated[float, Field(gt=0, le=1e9)] = setting(
        1e-3, "The highest learning rate of the schedule."
    )
    schedule: Literal["cosine", "linear", "constant"] = setting(
        "cosine", "How the learning rate falls after the warm-up."
    )
    warmup_updates: Annotated[int, Field(ge=0, le=1_000_000_000)] | Auto = setting(
        "auto", "Updates over which the learning rate rises from zero.", unit="updates"
    )
    final_learning_rate_ratio: Annotated[float, Field(ge=0, le=1)] = setting(
        0.0, "The last learning rate as a share of the highest."
    )
    weight_decay: Annotated[float, Field(ge=0, le=10)] = setting(0.0, "Decoupled weight decay.")
    beta1: Annotated[float, Field(ge=0, lt=1)] = setting(
        0.9, "Decay of AdamW's first moment, or the momentum of SGD when optimizer is sgd."
    )
    beta2: Annotated[float, Field(ge=0, lt=1)] = setting(0.999, "Decay of AdamW's second moment.")
    epsilon: Annotated[float, Field(gt=0, le=1)] = setting(1e-8, "AdamW's term for numerical stability.")
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = setting(
        0.0, "Decay of a moving average of the weights, which is evaluated and exported; 0 keeps none."
    )
    max_gradient_norm: Annotated[float, Field(ge=0)] = setting(
        1.0, "Clip the gradient's norm to this once per update; 0 never clips."
    )

    # How it is computed.
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = setting(
        "auto", "Precision of the forward pass; weights that train stay fp32 unless the image says otherwise."
    )
    torch_compile: bool | Auto = setting("auto", "Compile the model's blocks with torch.compile.")
    compile_mode: Literal["default", "max-autotune"] = setting(
        "default", "The mode of torch.compile, always without CUDA graphs; max-autotune tries several kernels."
    )
    gradient_checkpointing: bool | Auto = setting(
        "auto", "Recompute activations in the backward pass instead of keeping them."
    )
    optim_8bit: bool | Auto = setting(
        "auto", "Keep AdamW's state in 8 bits (bitsandbytes), and in 32 for embeddings and small tensors."
    )
    dataloader_workers: Annotated[int, Field(ge=0, le=256)] | Auto = setting(
        "auto", "Processes that read and decode examples on one rank; 0 reads in the training process.",
        unit="processes",
    )  # fmt: skip
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = setting(
        42, "Seed of everything random: initial weights, data order, augmentation, dropout."
    )

    # What is looked at and kept.
    evaluate_every: Annotated[int, Field(ge=0)] | Auto = setting(
        "auto",
        "Updates between evaluations of the validation split; 0 evaluates only at the end.",
        unit="updates",
    )
    checkpoint_every: PositiveCount | Auto = setting("auto", "Updates between checkpoints.", unit="updates")
    checkpoints_kept: Annotated[int, Field(ge=1, le=1_000)] = setting(
        2, "Newest checkpoints kept; the best one is kept besides.", unit="checkpoints"
    )
    best_metric: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$")] = setting(
        "loss", "The evaluation metric, on the validation split, that says which checkpoint is best."
    )
    best_is: Literal["lowest", "highest"] = setting("lowest", "Which value of best_metric is the best one.")
    early_stopping_patience: Annotated[int, Field(ge=0, le=1_000_000)] = setting(
        0, "Evaluations in a row without a better best_metric after which training ends; 0 never ends it.",
        unit="evaluations",
    )  # fmt: skip
    export_from: Literal["last", "best"] = setting("last", "The checkpoint that artifacts are made from.")
    nonfinite_limit: Annotated[int, Field(ge=1, le=1_000)] = setting(
        5, "Updates in a row with a non-finite loss or gradient after which the run stops as diverged.",
        unit="updates",
    )  # fmt: skip
    memory_release: Literal["report", "warn", "raise"] = setting(
        "warn", "What happens when a phase does not give its memory back."
    )

    # Settings a trainer computes per method live in Trainer.defaults, not in a second class.
    auto_epochs: ClassVar[int] = 3
    auto_microbatch: ClassVar[int] = 8

    def own_contradictions(self) -> Sequence[Problem]:
        """Optional hook: contradictions between a subclass's own settings, pointers like ``/max_length``."""
        return ()

    def contradictions(self) -> list[Problem]:
        """Settings that are fine alone and impossible together."""
        problems = [*_duration_problems(self), *_batch_problems(self), *_order_problems(self)]
        problems += [*_optimizer_problems(self), *_best_problems(self)]
        return [*problems, *self.own_contradictions()]

    @classmethod
    def read(cls, values: Mapping[str, Any], *, pointer: str = "/hyperparameters") -> Self:
        """Validate ``values`` and raise one :class:`BadJob` with every problem.

        Contradictions between settings are told together with wrong single values, as long as the settings
        they speak of are right by themselves.
        """
        settings, problems = cls.inspect(values, pointer=pointer)
        if settings is None or problems:
            raise BadJob("the hyperparameters cannot be used:", problems=problems)
        return settings

    @classmethod
    def inspect(
        cls, values: Mapping[str, Any], *, pointer: str = "/hyperparameters"
    ) -> tuple[Self | None, list[Problem]]:
        """The settings, or None, and every problem of ``values``."""
        wrong: set[str] = set()
        problems: list[Problem] = []
        settings: Self | None = None
        try:
            settings = cls.model_validate(dict(values))
            complete = settings
        except ValidationError as error:
            problems = explain(error, cls, pointer=pointer)
            wrong = {problem.pointer.removeprefix(pointer + "/").split("/")[0] for problem in problems}
            try:
                complete = cls.model_validate(
                    {name: value for name, value in values.items() if name not in wrong}
                )
            except ValidationError:
                return None, problems  # a default is wrong by itself, or a setting without one is missing
        for problem in complete.contradictions():
            if problem.pointer.split("/")[1] not in wrong:
                problems.append(
                    Problem(pointer + problem.pointer, problem.found, problem.expected, problem.hint)
                )
        return settings, problems


def batch_equation(microbatch: int, accumulation: int, replicas: int) -> str:
    """The multiplication as every message and plan shows it."""
    product = microbatch * accumulation * replicas
    return f"{microbatch} × {accumulation} × {replicas} = {product}"


def _duration_problems(settings: Hyperparameters) -> list[Problem]:
    if settings.updates == "auto" or settings.epochs == "auto":
        return []
    found = f"updates {settings.updates} and epochs {settings.epochs}"
    return [Problem("/updates", found, "one of the two, since each fixes the length of the run")]


def _batch_problems(settings: Hyperparameters) -> list[Problem]:
    """Contradictions that no number of replicas can mend; the plan checks the rest."""
    total, micro = settings.global_batch, settings.microbatch
    steps = settings.gradient_accumulation_steps
    if total == "auto":
        return []
    product = (1 if micro == "auto" else micro) * (1 if steps == "auto" else steps)
    if total % product == 0:
        return []
    if micro != "auto" and steps != "auto":
        found = f"global_batch {total}, yet microbatch × gradient_accumulation_steps × replicas is "
        found += batch_equation(micro, steps, 1) + " for one replica"
        expected = f"global_batch to be a multiple of {product}"
    else:
        name = "microbatch" if micro != "auto" else "gradient_accumulation_steps"
        found = f"global_batch {total} and {name} {product}: {total} / {product} is not whole"
        expected = f"{name} to divide global_batch, since global_batch = microbatch × "
        expected += "gradient_accumulation_steps × replicas"
    return [Problem("/global_batch", found, expected)]


def _order_problems(settings: Hyperparameters) -> list[Problem]:
    found = f"{settings.batching!r} with sampling {settings.sampling!r}"
    if settings.sampling == "sequential" and settings.batching != "mixed":
        return [Problem("/batching", found, "'mixed', since any other changes the dataset's order")]
    if settings.sampling == "weighted" and settings.batching == "by_group":
        expected = "'mixed' or 'by_length', since nobody knows how many rows of a group are drawn"
        return [Problem("/batching", found, expected)]
    return []


def _optimizer_problems(settings: Hyperparameters) -> list[Problem]:
    if settings.optimizer == "sgd" and settings.optim_8bit is True:
        return [
            Problem("/optim_8bit", "true with optimizer 'sgd'", "false or 'auto', since only AdamW has one")
        ]
    return []


def _best_problems(settings: Hyperparameters) -> list[Problem]:
    """What is found by comparing evaluations, where there is one at the end and no other."""
    if settings.evaluate_every != 0:
        return []
    problems = []
    if settings.early_stopping_patience:
        found = f"{settings.early_stopping_patience} with evaluate_every 0"
        problems.append(Problem("/early_stopping_patience", found, "0, since nothing is evaluated on the way"))
    if settings.export_from == "best":
        expected = "'last', since nothing is evaluated on the way"
        problems.append(Problem("/export_from", "'best' with evaluate_every 0", expected))
    return problems
