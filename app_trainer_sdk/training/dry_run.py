"""Owns the rehearsal without data: the trainer's own model, loss and update, on tensors that hold nothing.

The model is built on the ``meta`` device, its tensors are replaced by ones without data that say they live on
the CPU, and training is rehearsed with them under an account of allocations. No weights, no GPU, no network
and no rows are needed. This file must not know which configurations are worth a rehearsal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from app_trainer_sdk.training.allocations import Allocations, Held
from app_trainer_sdk.training.device import planned_for
from app_trainer_sdk.training.model_state import saved_tensors
from app_trainer_sdk.training.optim import load_library
from app_trainer_sdk.training.randomness import CPU
from app_trainer_sdk.training.rehearsal import UPDATES, rehearse
from app_trainer_sdk.training.state import SupervisedState
from app_trainer_sdk.training.supervised import assemble
from app_trainer_sdk.values import Batch, Modules

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal without data told.

    Attributes:
        places: the fullest instant of each place, such as ``update 2/block 0:backward``.
        size: of the model that was rehearsed.
        snapshot_bytes: what a checkpoint holds.
    """

    places: Mapping[str, Held]
    size: Size
    snapshot_bytes: int


@dataclass(frozen=True)
class Size:
    """How large a model is: repeated blocks, numbers in it, and those of them that train."""

    blocks: int
    parameters: int
    trained: int

    @classmethod
    def of(cls, modules: Modules) -> Self:
        """The size of built modules; helpers that never train count too."""
        roots = (modules.root, *modules.frozen.values())
        numbers = {id(each): each for root in roots for each in root.parameters()}.values()
        trained = sum(each.numel() for each in modules.root.parameters() if each.requires_grad)
        return cls(len(modules.blocks), sum(each.numel() for each in numbers), trained)


def dry_run(trainer: SupervisedTrainer, run: Run, *, kind: str = "cpu", updates: int = UPDATES) -> Rehearsed:
    """Rehearse a resolved configuration and tell what it holds where.

    Args:
        trainer: the trainer.
        run: its handle: settings resolved, ``dtype`` the forward pass's precision.
        kind: the type of device that is planned for. Operators are the CPU's whatever it is.
        updates: how many are made before the evaluation.
    """
    account = Allocations(kind=kind)
    with as_on(kind), uncollected():
        return _dry_run(trainer, dataclasses.replace(run, device=CPU), account, updates)


@contextlib.contextmanager
def as_on(kind: str) -> Iterator[None]:
    """Inside, what chooses by the type of device chooses as on ``kind``, though operators are the CPU's."""
    with planned_for(kind), _card_dropout() if kind != "cpu" else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def _card_dropout() -> Iterator[None]:
    """Inside, dropout keeps a byte for each element as on a card; the CPU's keeps noise in the input's dtype.

    Torch's function itself is replaced: torch leaves its modes for the backward pass, which makes blocks again.
    """
    plain = functional.dropout

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002 - torch's names
        drops = training and 0 < p < 1 and not inplace
        return torch.native_dropout(input, p, True)[0] if drops else plain(input, p, training, inplace)

    functional.dropout = dropout
    try:
        yield
    finally:
        functional.dropout = plain


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Inside, no garbage is collected: cycles, such as recomputation leaves, hold memory until a moment that
    nobody chooses. The most that can be held is when it does not come.
    """  # fmt: skip
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _dry_run(trainer: SupervisedTrainer, run: Run, account: Allocations, updates: int) -> Rehearsed:
    load_library(run.settings)
    modules = build_shapes(trainer, run)
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    give_memory((modules.root, *modules.frozen.values()), fake)
    batch = _without_data(trainer.largest_batch(run, run.settings.microbatch), fake)
    with account:
        _note_model(account, modules)
        account.give(batch.tensors.values(), "batch")
        account.mark("load")
        # Outside the fake mode: bitsandbytes computes its quantisation maps with real values.
        state = assemble(trainer, _eager(run), modules)
        if state.average is not None:
            account.give(state.average.memory, "average")
        with fake:
            _watch(state, account)
            rehearse(trainer, run, state, batch, mark=account.mark, updates=updates)
    return Rehearsed(account.peaks(), Size.of(modules), _snapshot_bytes(state))


def build_shapes(trainer: SupervisedTrainer, run: Run) -> Modules:
    """The trainer's modules on the ``meta`` device."""
    with torch.device("meta"):
        return trainer.build_model(run, weights=False)


def _snapshot_bytes(state: SupervisedState) -> int:
    """Bytes of what a checkpoint holds; shared memory is saved once."""
    tensors = [*saved_tensors(state.modules.root).values(), *_state_tensors(state.optimizer)]
    tensors += [] if state.average is None else state.average.tensors.values()
    return sum({each.untyped_storage()._cdata: each.nbytes for each in tensors}.values())


def _eager(run: Run) -> Run:
    """Compiled blocks are rehearsed as eager ones: a compiler would ask for a device."""
    return dataclasses.replace(run, settings=run.settings.model_copy(update={"torch_compile": False}))


def give_memory(roots: Iterable[nn.Module], fake: FakeTensorMode) -> None:
    """Replace ``meta`` tensors by tensors without data that live on the CPU; what was tied stays tied."""
    known: dict[int, Tensor] = {}

    def instead(tensor: Tensor) -> Tensor:
        if id(tensor) not in known:
            with fake:
                made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            if isinstance(tensor, nn.Parameter):
                made = nn.Parameter(made, requires_grad=tensor.requires_grad)
            known[id(tensor)] = made
        return known[id(tensor)]

    for root in roots:
        for module in root.modules():
            for table in (module._parameters, module._buffers, vars(module)):
                for name, value in table.items():
                    if isinstance(value, Tensor):
                        table[name] = instead(value)  # type: ignore[assignment]


def _without_data(batch: Batch, fake: FakeTensorMode) -> Batch:
    return dataclasses.replace(
        batch, tensors={name: fake.from_tensor(each) for name, each in batch.tensors.items()}
    )


def _note_model(account: Allocations, modules: Modules) -> None:
    for root in (modules.root, *modules.frozen.values()):
        account.give(root.parameters(), "parameters")
        account.give(root.buffers(), "buffers")


def _watch(state: SupervisedState, account: Allocations) -> None:
    """Tell the account where the rehearsal is and whose tensors are whose, by hooks that change nothing."""
    blocks = state.modules.blocks

    def place(part: str) -> None:
        account.mark(f"{account.place.split('/')[0].split(':')[0]}/{part}")

    def before_step(*_: Any) -> None:
        account.give(state.gradients(), "gradients")
        place("step")

    def after_step(*_: Any) -> None:
        account.give(_state_tensors(state.optimizer), "optimizer_state")

    state.optimizer.register_step_pre_hook(before_step)
    state.optimizer.register_step_post_hook(after_step)
    for number, block in enumerate(blocks):
        name = "first block" if number == 0 else "last block" if number == len(blocks) - 1 else "blocks"

        def before(*_: Any, name: str = name) -> None:
            place(name)

        def after(_: Any, __: Any, out: Any, name: str = name) -> None:
            tensor = out[0] if isinstance(out, tuple) else out
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda _: place(f"{name}:backward"))  # type: ignore[no-untyped-call]
            if name == "last block":
                place("after blocks")

        block.register_forward_pre_hook(before)
        block.register_forward_hook(after)


def _state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    values = (value for each in optimizer.state.values() for value in each.values())
    return [value for value in values if isinstance(value, Tensor)]
