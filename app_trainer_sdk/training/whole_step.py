"""Owns applying an update whole or not at all, also when memory runs out in the middle of the optimizer's step.

A step that makes optimizer state needs memory that no update before it needed: what it changes is copied to
the host first, and all ranks agree on how it ended. Later steps of the optimizers that are built on a card take
no memory, so nothing is copied for them, nothing exchanged, and nothing can be tried again. This file must not
know how a gradient came about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy
import torch
from torch import Tensor

from app_trainer_sdk.limits import host_memory
from app_trainer_sdk.training import optim
from app_trainer_sdk.training.oom import OutOfMemoryHere, Shortage, elsewhere, is_out_of_memory, shortage_of
from app_trainer_sdk.training.state import SupervisedState

ALONE = (
    "a smaller one would not help: the optimizer's step does not fit beside weights and gradients alone, with "
    "no microbatch in memory"
)
HALF = (
    "a smaller one would not help: the optimizer's step, which has no microbatch in memory, had begun, on this "
    "rank or on others, so that weights in memory are neither those before nor those after it; they are given "
    "up, and the last checkpoint is whole"
)
NO_COPY = (
    "a smaller one is not tried: the optimizer's first step had begun, and the host has too little memory for "
    "the copy of the weights that could be gone back to"
)


def apply_update(state: SupervisedState, *, room: Callable[[], int] | None = None) -> None:
    """Make the optimizer's step, and the average's; gradients are there, clipped and finite.

    Args:
        state: what trains.
        room: bytes of host memory that may be used; the container's unless given.

    Raises:
        OutOfMemoryHere: memory ran out. Everything is as before the step unless the shortage says that a
            smaller microbatch does not help; on several ranks it is raised by all, or the run ends.
    """
    copied = _may_run_out(state)
    before = _Before(state) if copied and _has_room(state, room or _host_room) else None
    shortage = None
    try:
        optim.step(state.optimizer)
        if state.average is not None:
            state.average.follow(state.counters.updates + 1)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        shortage = shortage_of(error)
    # Outside the except block: nothing holds the failed frames any more.
    if before is not None:
        if any(state.team.anywhere([shortage is not None])):
            _undo(state, before, shortage or elsewhere())
    elif shortage is not None:
        raise OutOfMemoryHere(shortage.hopeless(NO_COPY if copied else HALF, step=True))


def _may_run_out(state: SupervisedState) -> bool:
    """Whether this step takes memory. Tensors of a plan have none, and the copies would only confuse it."""
    return optim.takes_memory(state.optimizer) and type(state.parameters[0]).__name__ != "FakeTensor"


def _has_room(state: SupervisedState, room: Callable[[], int]) -> bool:
    """Whether every rank's host can hold the copies of all; else the kernel would end the job for certain."""
    size = sum(each.nbytes for each in _changed_by_a_step(state)) * state.team.size
    return not any(state.team.anywhere([size > room()]))


def _host_room() -> int:
    return host_memory().usable_bytes


def _undo(state: SupervisedState, before: _Before, shortage: Shortage) -> None:
    """Go back to before the step on all ranks, and find out whether a smaller microbatch could help."""
    before.put_back(state)
    missing = _try_alone(state)
    before.put_back(state)
    forget_unscaling(state)
    if any(state.team.anywhere([missing is not None])):
        raise OutOfMemoryHere(shortage.hopeless(ALONE, step=True))
    raise OutOfMemoryHere(shortage)


def forget_unscaling(state: SupervisedState) -> None:
    """Let an update be made again: a loss scale refuses to unscale twice in one."""
    if state.scaler is not None:
        fresh = torch.amp.GradScaler(state.parameters[0].device.type)
        fresh.load_state_dict(state.scaler.state_dict())
        state.scaler = fresh


def _try_alone(state: SupervisedState) -> Shortage | None:
    """Make the step with gradients of zero and nothing else in memory; it is undone by the caller."""
    trained = [each for each in state.parameters if each.grad is not None]
    state.drop_gradients()
    if trained[0].device.type == "cuda":
        torch.cuda.empty_cache()
    missing = None
    try:
        for each in trained:
            each.grad = torch.zeros_like(each)
        optim.step(state.optimizer)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        missing = shortage_of(error)
    state.drop_gradients()
    return missing


class _Before:
    """Weights, optimizer state and average before a step, on the host."""

    def __init__(self, state: SupervisedState) -> None:
        self._tensors = [(each, _bytes_of(each)) for each in _changed_by_a_step(state)]
        self._values = {parameter: dict(values) for parameter, values in state.optimizer.state.items()}

    @torch.no_grad()
    def put_back(self, state: SupervisedState) -> None:
        """Make everything as it was; state that a step made is dropped."""
        state.optimizer.state.clear()
        state.optimizer.state.update({parameter: dict(values) for parameter, values in self._values.items()})
        for tensor, copy in self._tensors:
            tensor.copy_(torch.from_numpy(copy).view(tensor.dtype).reshape(tensor.shape))


def _changed_by_a_step(state: SupervisedState) -> Sequence[Tensor]:
    kept = [each for values in state.optimizer.state.values() for each in values.values()]
    average = [*state.average.tensors.values()] if state.average is not None else []
    return [*state.parameters, *(each for each in kept if isinstance(each, Tensor)), *average]


def _bytes_of(tensor: Tensor) -> numpy.ndarray:
    """A copy in numpy's memory, which no counter of torch's takes for the device's."""
    return numpy.array(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
