"""Owns running out of memory: noticing it, letting go of what it holds, and trying an update with less.

Nothing of an update is applied before its verdict, and a step of the optimizer that fails is undone, so the
update is made again: gradients are dropped, the window is read again and cut into half as large microbatches,
at the same global batch. Data, noise by position and the divisor are the same, so the update is the one that
would have been made. It happens outside any ``except`` block, with the failed frames cleared: a frame in a
traceback holds the very tensors that did not fit. This file must not know how a loss is computed.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from app_trainer_sdk.errors import (
    ExitCode,
    GpuOutOfMemory,
    HostOutOfMemory,
    PeerFailed,
    TrainerError,
    origins,
    text_of,
)
from app_trainer_sdk.outcome import memory_code
from app_trainer_sdk.quantities import memory_text
from app_trainer_sdk.training import nearest
from app_trainer_sdk.training.feed import LoadedWindow
from app_trainer_sdk.training.memory import probe_for
from app_trainer_sdk.training.state import SupervisedState
from app_trainer_sdk.values import JSON, Batch

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run

TEXT_CHARACTERS = 200
ELSEWHERE = "another rank ran out of memory"
COUPLED = "rows of this trainer's batch see each other, so it is never split"


@dataclass(frozen=True)
class Shortage:
    """One time that memory ran out, as text only.

    Attributes:
        text: what was said, and where.
        code: whose memory it was; None on a rank that had enough.
        why_not: why a smaller microbatch does not help; empty when it may.
        step: whether it was in the optimizer's step, where nothing of a microbatch is in memory any more.
    """

    text: str
    code: ExitCode | None
    why_not: str = ""
    step: bool = False

    def hopeless(self, why: str, *, step: bool = False) -> Shortage:
        """The same, and a smaller microbatch does not help."""
        return replace(self, why_not=why, step=step)


class OutOfMemoryHere(Exception):  # noqa: N818 - a signal between two files, seen by nobody else
    """Memory ran out on some rank, and all ranks know. It holds text and no frame of what failed."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__(shortage.text)
        self.shortage = shortage


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error, or anything it came from, says that memory ran out: a GPU's or the host's."""
    return memory_code(error) is not None


def forget_frames(error: BaseException) -> str:
    """Let go of everything that an error and all it came from hold; returns what is worth keeping, as text.

    Locals of the failed functions are dropped, generators among them closed; frames that still run are left.
    """
    place = _place(error)
    text = f"{type(error).__name__}: {' '.join(text_of(error).split())[:TEXT_CHARACTERS]}{place}"
    for each in [*origins(error)]:
        traceback.clear_frames(each.__traceback__)
        each.__traceback__ = each.__cause__ = each.__context__ = None
    return text


def shortage_of(error: BaseException) -> Shortage:
    """An out-of-memory error as text; its frames are forgotten."""
    code = memory_code(error)
    return Shortage(forget_frames(error), code)


def elsewhere() -> Shortage:
    """The shortage of another rank, as this one hears of it."""
    return Shortage(ELSEWHERE, None)


def make_room(
    trainer: SupervisedTrainer, run: Run, state: SupervisedState, shortage: Shortage, inputs: Mapping[str, JSON]
) -> dict[str, JSON]:
    """Halve the microbatch at the same global batch, and drop what the failed update left.

    Args:
        trainer: says what may be split.
        run: the handle.
        state: gets the new microbatch, for the rest of the run and all that resume it.
        shortage: what happened.
        inputs: what the failed update was about to train on.

    Returns:
        the variant, for the record.

    Raises:
        GpuOutOfMemory: there is nothing left to halve; or HostOutOfMemory, or PeerFailed on other ranks.
    """
    assert run.device is not None
    assert isinstance(state.settings.microbatch, int)
    before = state.settings.microbatch
    why_not = shortage.why_not or _why_not(trainer, state, before)
    if why_not:
        raise refusal(trainer, run, state, shortage, inputs, why_not)
    state.drop_gradients()
    if run.device.type == "cuda":
        torch.cuda.empty_cache()
    after = max(before // 2, trainer.minimum_rows)
    state.counters.out_of_memory += 1
    state.use_microbatch(after)
    return {"microbatch": before, "next": after, "error": shortage.text, "inputs": dict(inputs)}


def described_inputs(window: LoadedWindow) -> dict[str, JSON]:
    """The largest microbatch of a window: rows, units and the shapes of its tensors."""
    if not window.microbatches:
        return {}
    largest = max(window.microbatches, key=lambda each: each.size)
    return described(largest.batch, largest.rows)


def described(batch: Batch, rows: int) -> dict[str, JSON]:
    """Rows, units and shapes of a batch."""
    shapes: dict[str, JSON] = {name: list(each.shape) for name, each in batch.tensors.items()}
    return {"rows": rows, "units": batch.units, "shapes": shapes}


def _why_not(trainer: SupervisedTrainer, state: SupervisedState, microbatch: int) -> str:
    if trainer.coupled_rows:
        return COUPLED
    if microbatch <= trainer.minimum_rows:
        return f"{microbatch} is the least a microbatch may have"
    if state.place is not None and state.place.resume == "not exact":
        return "the training data is a stream that cannot be read again"
    return ""


def refusal(
    trainer: SupervisedTrainer, run: Run, state: SupervisedState, shortage: Shortage,
    inputs: Mapping[str, JSON], why_not: str, what: str = "",
) -> TrainerError:  # fmt: skip
    """The end of the run: where, with which inputs, what memory was held, and what else there is to change.

    Args:
        trainer: the trainer.
        run: the handle.
        state: for what was done so far, and its settings.
        shortage: what happened.
        inputs: what was being computed.
        why_not: why it is not tried with less.
        what: what there was no memory for, and of what size; empty for the next update.
    """
    assert run.device is not None
    if shortage.code is None:
        return PeerFailed(ELSEWHERE)
    probe = probe_for(run.device)
    now = probe.read()
    held = f"allocated {memory_text(now.allocated)}, reserved {memory_text(now.reserved)}"
    held += f", peak {memory_text(probe.peak())}, resident {memory_text(now.resident)}"
    update = f"update {state.counters.updates + 1} in phase train at microbatch {state.settings.microbatch}"
    kind = GpuOutOfMemory if shortage.code is ExitCode.GPU_OUT_OF_MEMORY else HostOutOfMemory
    return kind(
        f"no memory for {what or update}, and {why_not}; inputs {inputs}; {held}; {shortage.text}",
        expected="room for the optimizer's state" if shortage.step else "room for one microbatch",
        setting=nearest.hint(trainer, run, state, nearest_settings(state, step=shortage.step)),
    )  # fmt: skip


def nearest_settings(state: SupervisedState, *, step: bool = False) -> str:
    """Settings that take less memory, the cheapest first; none of them has been tried.

    Args:
        state: for what is set already.
        step: whether the optimizer's step alone must get smaller.
    """
    settings: Any = state.settings
    ways = []
    if settings.gradient_checkpointing is not True and state.modules.blocks and not step:
        ways.append("gradient_checkpointing to true")
    if settings.mixed_precision == "no" and not step:
        ways.append("mixed_precision to 'bf16'")
    if settings.optim_8bit is not True and settings.optimizer == "adamw":
        ways.append("optim_8bit to true")
    if hasattr(settings, "max_length") and not step:
        ways.append(f"max_length to less than {settings.max_length}")
    named = ", or ".join(f"/hyperparameters/{way}" for way in ways)
    return f"{named or 'the model to a smaller one'}, or take a card with more memory"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    return f" (in {frames[-1].name} at {Path(frames[-1].filename).name}:{frames[-1].lineno})"
