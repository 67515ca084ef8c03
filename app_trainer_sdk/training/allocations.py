"""Owns the account of a computation's memory: every storage that is made, to whom it belongs, and its end.

A dispatch mode notes the storages that operators return and a weak reference tells when each one dies, so the
account is exact for tensors without data, where no allocator could be asked. What an operator takes and gives
back inside is invisible here; those known to take much are named in ``WORKSPACE``. This file must not know
models, losses or what a step of training is.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from app_trainer_sdk.training.shape_operators import on_shapes

#: Owners, in the order they are told.
OWNERS = (
    "parameters", "buffers", "average", "gradients", "optimizer_state", "batch", "activations", "temporaries",
    "workspace",
)  # fmt: skip

#: CUDA's allocator hands out multiples of this many bytes.
CUDA_BLOCK_BYTES = 512

#: Bytes for each element of the first tensor argument that an operator takes and gives back inside, on the CPU:
#: bitsandbytes 0.50 widens both moments and holds the scaled gradient, a root and a denominator beside them.
#: Its 32-bit step needs an update and two parts of a denominator.
WORKSPACE = {
    "bitsandbytes::optimizer_update_8bit_blockwise": 20,
    "bitsandbytes::optimizer_update_32bit": 12,
}

#: Flash attention's backward, which takes memory on a card: see :func:`_flash_workspace`.
FLASH_BACKWARD = "aten::_flash_attention_backward"

#: The tensor's own use and that of its Python object, as ``_storage_Use_Count`` tells.
_USES_OF_A_LONE_STORAGE = 2

#: What the host reads of a tensor without data: losses and norms are finite, flags are set.
_READS = {torch.ops.aten._local_scalar_dense.default}

#: How the device of a tensor without data is asked for.
_DEVICE = torch.ops.prim.device.default


@dataclass(eq=False, slots=True)
class _Block:
    """One storage."""

    size: int
    owner: str = ""
    end: Any = None


@dataclass(frozen=True)
class Held:
    """What was held at one instant: bytes by owner, and what CUDA's allocator would round them up by."""

    by_owner: Mapping[str, int] = field(default_factory=dict)
    rounding: int = 0

    @property
    def total(self) -> int:
        """Bytes handed out, rounding left aside."""
        return sum(self.by_owner.values())


@final
class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the account while it is active. :meth:`peaks` tells the result.

    Args:
        kind: the type of device that is accounted for. Operators are the CPU's whatever it is; the memory that
            they take inside is not.
    """

    def __init__(self, *, kind: str = "cpu") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._workspace = _workspace_here if kind == "cpu" else _flash_workspace
        self._live: dict[int, _Block] = {}
        self._events: list[tuple[_Block, bool]] = []
        self._marks: list[tuple[int, str]] = []
        self._place = ""
        self._in_backward = False

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Any:
        """Run one operator and note what it made."""
        if function is _DEVICE:  # six of ten calls, made by autograd and the optimizer; nothing is computed
            return arguments[0].fake_device
        in_backward = torch._C._current_graph_task_id() != -1
        if in_backward != self._in_backward:
            self._turn(in_backward)
        if function in _READS and isinstance(arguments[0], FakeTensor):
            return _as_if(arguments[0].dtype)
        if in_backward and function is torch.ops.aten.add.Tensor:
            function, arguments = _as_the_engine_adds(arguments)
        inside = _made_of_others(function)
        if inside is not None:
            with self:  # what it makes on the way is then seen too
                return inside(*arguments, **(keywords or {}))
        made = on_shapes(function, arguments, keywords or {})
        if made is NotImplemented:
            made = function(*arguments, **(keywords or {}))
        self._take_workspace(function, arguments)
        if isinstance(made, Tensor):
            self.note(made)
        elif isinstance(made, tuple | list):
            for each in made:
                if isinstance(each, Tensor):
                    self.note(each)
        return made

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and what torch would wrap around each call takes as long as the call."""
        return False

    def mark(self, place: str) -> None:
        """What follows happens at ``place``; peaks are told by place."""
        if place != self._place:
            self._place = place
            self._marks.append((len(self._events), place))

    @property
    def place(self) -> str:
        """Where the computation is."""
        return self._place

    def note(self, tensor: Tensor, owner: str = "") -> None:
        """Take a tensor's storage into the account, or say whose it is. The last owner said is the one told."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        block = self._live.get(key)
        if block is None:
            block = _Block(storage.nbytes(), owner)
            block.end = weakref.ref(storage, lambda _: self._end(key))
            self._live[key] = block
            self._events.append((block, True))
        elif owner:
            block.owner = owner

    def give(self, tensors: Iterable[Tensor], owner: str) -> None:
        """Say whose these tensors are."""
        for tensor in tensors:
            self.note(tensor, owner)

    def peaks(self) -> dict[str, Held]:
        """The fullest instant of each place, by the place's name."""
        marks = [*self._marks, (len(self._events) + 1, "")]
        best: _Peaks = {}
        held, total, rounding, at = dict.fromkeys(OWNERS, 0), 0, 0, 0
        for index, (block, begins) in enumerate(self._events):
            while marks[at + 1][0] <= index:
                at += 1
                _keep(best, marks[at][1], total, held, rounding)
            sign = 1 if begins else -1
            total += sign * block.size
            rounding += sign * (-block.size % CUDA_BLOCK_BYTES)
            held[block.owner or "temporaries"] += sign * block.size
            if begins:
                _keep(best, marks[at][1], total, held, rounding)
        for _, place in marks[at + 1 : -1]:  # where nothing was made any more
            _keep(best, place, total, held, rounding)
        return {place: Held(by_owner, extra) for place, (_, by_owner, extra) in best.items()}

    def _end(self, key: int) -> None:
        self._events.append((self._live.pop(key), False))

    def _turn(self, in_backward: bool) -> None:
        """A backward pass begins or ends. What lives between the two and has no owner was kept for it."""
        self._in_backward = in_backward
        if in_backward:
            for block in self._live.values():
                block.owner = block.owner or "activations"
        self.mark(f"{self._place.split(':')[0]}:{'backward' if in_backward else 'after backward'}")

    def _take_workspace(self, function: Any, arguments: tuple[Any, ...]) -> None:
        tensors = [each for each in arguments if isinstance(each, Tensor)]
        size = self._workspace(function, tensors) if tensors else 0
        if size:
            block = _Block(size, "workspace")
            self._events += [(block, True), (block, False)]


def _workspace_here(function: Any, tensors: list[Tensor]) -> int:
    """Bytes that an operator of the CPU takes and gives back inside."""
    return WORKSPACE.get(function._schema.name, 0) * tensors[0].numel() or _widened(function, tensors)


def _flash_workspace(function: Any, tensors: list[Tensor]) -> int:
    """The same for CUDA's flash attention, by what torch 2.13's ``mha_varlen_bwd`` allocates.

    A query's gradient and a row's sum in fp32, both with 128 tokens more a row; where heads share keys, also
    gradients of keys and values for every head.
    """
    if function._schema.name != FLASH_BACKWARD:
        return 0
    query, key, starts = tensors[1], tensors[2], tensors[6]
    tokens, heads, width = query.shape
    padded = tokens + 128 * (starts.numel() - 1)
    multiple = 32 if width <= 128 else 64
    size = padded * heads * (-(-width // multiple) * multiple + 1) * 4
    return size if key.shape[1] == heads else size + 2 * len(key) * heads * width * key.itemsize


def _widened(function: Any, tensors: list[Tensor]) -> int:
    """Bytes of the copies that the CPU makes of operands narrower than their common dtype; CUDA makes none."""
    mixed = [each for each in tensors if each.dim() and each.dtype != torch.bool]
    if len({each.dtype for each in mixed}) < 2 or torch.Tag.pointwise not in function.tags:
        return 0
    common = functools.reduce(torch.promote_types, [each.dtype for each in mixed])
    if function._schema.is_mutable:
        mixed.append(tensors[0])  # the result, which is narrowed again
    return sum(each.numel() * common.itemsize for each in mixed if each.dtype != common)


def _as_the_engine_adds(arguments: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Autograd adds gradients that meet into one of them, except under a dispatch mode such as this one.

    The condition is that of torch's ``input_buffer.cpp``: nobody else has the memory that is added to.
    """
    pair = arguments[:2]
    if len(pair) == 2 and all(isinstance(each, Tensor) for each in pair) and _calls_from_the_engine():
        for here, other in (pair, pair[::-1]):
            storage = here.untyped_storage()
            alone = torch._C._storage_Use_Count(storage._cdata) <= _USES_OF_A_LONE_STORAGE
            if alone and here.shape == other.shape and here.nbytes == storage.nbytes():
                return torch.ops.aten.add_.Tensor, (here, other)
    return torch.ops.aten.add.Tensor, arguments


def _calls_from_the_engine() -> bool:
    """Whether an operator was called by autograd itself, and not by Python code that makes something again."""
    caller = sys._getframe(3)  # who called __torch_dispatch__
    return caller.f_code.co_name == "_engine_run_backward"


@functools.cache
def _made_of_others(function: Any) -> Callable[..., Any] | None:
    """The body of an operator that is a function over other operators.

    Some are written in Python, such as torch's fused loss. Others come whole where autograd is off, such as
    pooling, which makes indices that nobody asked for.
    """
    if function.namespace == "aten":
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CPU")
        whole: Callable[..., Any] | None = function.decompose if function._can_decompose() else None
        return None if has_kernel else whole
    definition = OPDEFS.get(function._schema.name)
    body: Callable[..., Any] | None = getattr(definition, "_init_fn", None)
    return body


_Peaks = dict[str, tuple[int, dict[str, int], int]]


def _keep(best: _Peaks, place: str, total: int, held: dict[str, int], rounding: int) -> None:
    if place not in best or total > best[place][0]:
        best[place] = (total, dict(held), rounding)


def _as_if(dtype: torch.dtype) -> bool | int | float:
    if dtype == torch.bool:
        return True
    return 1.0 if dtype.is_floating_point else 1
