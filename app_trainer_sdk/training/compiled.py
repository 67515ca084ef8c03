"""Owns torch.compile: what is refused before it, the call that compiles, and how many graphs came of it.

It must not know updates, checkpoints or whether compiling pays.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from torch import nn

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.training.feed import to_device
from app_trainer_sdk.training.model_state import Buffers
from app_trainer_sdk.training.randomness import Random, derive_seed, global_seeds

if TYPE_CHECKING:
    from app_trainer_sdk.contract import SupervisedTrainer
    from app_trainer_sdk.handle import Run
    from app_trainer_sdk.training.wrap import LossModule

#: Graphs of all blocks together. Torch's own limit of 8 is reached by a few kinds of blocks, each with
#: training and evaluation; past it some blocks would run uncompiled without a word.
GRAPHS_AT_MOST = 64
#: What torch calls each mode. CUDA graphs, which its other ones bring, do not go with this loop: blocks that
#: feed each other (pytorch#160281) and gradients that accumulate (#169545) fail, on ROCm training goes wrong
#: without a word (#187715), and each length of rows would be recorded anew.
MODES = {"default": None, "max-autotune": "max-autotune-no-cudagraphs"}


def compile_blocks(
    blocks: Sequence[nn.Module],
    root: nn.Module,
    settings: Hyperparameters,
    *,
    backend: str | Callable[..., Any],
) -> None:
    """Compile block by block, with dynamic shapes; equal blocks share a graph.

    The instance's ``forward`` is replaced, so no name changes. Nothing is compiled before the first call.

    Raises:
        InternalError: an option of torch is set with which compiled dropout is not what it is without it.
    """
    import torch._dynamo

    _refuse_memory_budget(root)
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, GRAPHS_AT_MOST)
    config.fail_on_recompile_limit_hit = True
    mode = MODES[settings.compile_mode]
    for block in blocks:
        block.forward = torch.compile(_begins_here(block.forward), mode=mode, dynamic=True, backend=backend)


def _begins_here(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A function of this file: Dynamo begins no graph in a file of torch's own, so that a Sequential would run
    uncompiled.
    """

    @functools.wraps(forward)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return compiled


def make_first_call(
    trainer: SupervisedTrainer,
    run: Run,
    loss: LossModule,
    buffers: Buffers,
    precision: AbstractContextManager[Any],
) -> None:
    """Compile with the largest batch, whatever row comes first.

    Kernels are made for the shapes of the first call, so a resumed run, which begins elsewhere, would compile
    others than one that was never stopped. No gradient, buffer or random number of the call stays.

    Args:
        trainer: makes the batch.
        run: its handle.
        loss: model and loss, with compiled blocks inside.
        buffers: those of the model, to be put back.
        precision: that of the forward pass.

    Raises:
        InternalError: nothing was compiled, for example since the loss calls no block as a module.
    """
    settings: Hyperparameters = run.settings
    assert run.device is not None
    assert settings.microbatch != "auto"
    run.progress("compile", 0, None)
    seed = derive_seed(settings.seed, "first call")
    before = buffers.copies()
    with global_seeds(seed, run.device):
        batch = to_device(trainer.largest_batch(run, settings.microbatch), run.device)
        with precision:
            terms = loss(batch, Random(seed))
        sum(terms.means.values(), terms.sum).backward()
    buffers.put_back(before)
    loss.zero_grad(set_to_none=True)
    if not count_graphs():
        raise InternalError(
            "torch_compile compiled nothing", expected="a loss that calls the model's blocks, or its root",
            setting="/hyperparameters/torch_compile to false",
        )  # fmt: skip


def count_graphs() -> int:
    """Graphs this process has compiled: forward and backward of one shape are one."""
    utils = sys.modules.get("torch._dynamo.utils")  # whoever compiled has imported it
    return int(utils.counters["stats"]["unique_graphs"]) if utils is not None else 0


def _refuse_memory_budget(root: nn.Module) -> None:
    """Below a budget of 1.0 torch 2.13 recomputes dropout in the backward pass with other random numbers."""
    import torch._functorch.config as config

    budget: float = config.activation_memory_budget
    dropout = next(_dropouts(root), "")
    if budget < 1.0 and dropout:
        raise InternalError(
            f"torch's activation_memory_budget is {budget} and {dropout}: compiled gradients would be wrong",
            expected="a budget of 1.0, or no dropout",
            setting="torch._functorch.config, or /hyperparameters/torch_compile to false",
        )


def _dropouts(root: nn.Module) -> Iterator[str]:
    """Where a model says that it drops: dropout layers, and rates in its modules and their configurations."""
    for name, module in root.named_modules():
        rates = {"p": module.p} if isinstance(module, nn.modules.dropout._DropoutNd) else {}
        for holder in (module, getattr(module, "config", None)):
            named = getattr(holder, "__dict__", {})
            rates |= {key: rate for key, rate in named.items() if "drop" in key and isinstance(rate, float)}
        yield from (f"{name or 'the model'} has {key} = {rate}" for key, rate in rates.items() if rate > 0)
