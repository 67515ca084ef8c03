"""Compiled runs: names and numbers of plain ones, exact in their own mode, few graphs, wrong gradients refused.

What compiles for real does so in a process of its own, as in a container; elsewhere graphs are only traced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import types
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounter
from torch._functorch import config as functorch_config
from torch_helpers import CPU, in_new_process, make_trainer, open_training, same_tensors, train

from app_trainer_sdk.errors import InternalError
from app_trainer_sdk.hyperparameters import Hyperparameters
from app_trainer_sdk.testing.compare import global_states, moved_generators
from app_trainer_sdk.training import supervised
from app_trainer_sdk.training.compiled import compile_blocks, count_graphs, make_first_call
from app_trainer_sdk.training.wrap import wrap
from app_trainer_sdk.values import Modules

# What torch's own compiler does.
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

SETTINGS = Hyperparameters(torch_compile=True)
JOB = {
    "epochs": 3, "global_batch": 4, "learning_rate": 0.01, "schedule": "constant", "warmup_updates": 0,
    "evaluate_every": 0, "checkpoint_every": 1000,
}  # fmt: skip


@pytest.fixture
def fresh():
    """Dynamo as a new process has it, and its settings put back."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=False):
        yield
    torch._dynamo.reset()


class Block(nn.Module):
    """A residual block with dropout."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.outer = nn.Linear(16, 8)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.outer(self.dropout(torch.tanh(self.inner(x))))


def block_trainer(dropout=0.0, rows=10, blocks=1):
    """Fits a network of blocks to rows of eight numbers."""

    def build(run):
        root = nn.Sequential(*(Block(dropout) for _ in range(blocks)))
        return Modules(root, blocks=list(root))

    def loss(modules, values, random):
        x = torch.tensor(values).unsqueeze(-1) * torch.linspace(0.1, 0.8, 8)
        return (modules.root(x) - 0.5).pow(2).sum()

    return make_trainer(build, loss, [float(row) / rows for row in range(rows)])


def started(directory, *, dropout=0.0, stop_at=0, compiled=True):
    """One start of a job in this process: its lines, whether it was stopped, what it saved, by name."""
    training = train(block_trainer(dropout), Path(directory), stop_at=stop_at, torch_compile=compiled, **JOB)
    tensors = {name: each.numpy() for name, each in training.snapshot().tensors.items()}
    return training.metrics(), training.stopped, tensors


def compiled_starts(cache, jobs):
    """Starts of compiled jobs, one after the other, and the graphs made for each; none is read from a cache."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # compiled kernels, by the digest of their source
    torch._inductor.config.fx_graph_cache = False
    functorch_config.enable_autograd_cache = False
    answers = []
    for directory, asked in jobs:
        torch._dynamo.reset()
        before = count_graphs()
        answers.append((*started(directory, **asked), count_graphs() - before))
    return answers


def as_tensors(arrays):
    return {name: torch.from_numpy(each) for name, each in arrays.items()}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def whole(cache, tmp_path_factory):
    """Two compiled runs that nobody stopped: without dropout, and with it."""
    folder = tmp_path_factory.mktemp("whole")
    jobs = [(str(folder / "without"), {}), (str(folder / "with"), {"dropout": 0.5})]
    return in_new_process(compiled_starts, cache, jobs)


class TestRuns:
    CHECKS: ClassVar = 2  # asked before the microbatch and after the update

    def test_names_and_numbers_are_those_of_a_plain_run(self, tmp_path, whole):
        """F1: 10 rows, batch 4, 3 epochs: one graph for batches of 4 and 2 rows, 30 rows trained; the same
        names and, without dropout, the same weights to tolerance as a run that is not compiled.
        """
        lines, _, compiled, graphs = whole[0]
        plain_lines, _, plain = started(tmp_path, compiled=False)

        assert graphs == 1
        assert [line["examples"] for line in lines] == [4, 4, 2] * 3
        assert [line["ids"] for line in lines] == [line["ids"] for line in plain_lines]
        assert compiled.keys() == plain.keys()
        assert not any("_orig_mod" in name for name in compiled)
        for name in plain:
            torch.testing.assert_close(torch.from_numpy(compiled[name]), torch.from_numpy(plain[name]))

    def test_a_compiled_run_resumes_exactly(self, tmp_path, cache, whole):
        """Stopped before an epoch's short last batch and resumed in a new process, with dropout on, losses and
        every saved tensor are bit for bit those of the compiled run that nobody stopped.
        """
        expected_lines, _, expected, _ = whole[1]
        cut = {"dropout": 0.5, "stop_at": 2 * self.CHECKS}
        ((first, stopped, _, _),) = in_new_process(compiled_starts, cache, [(str(tmp_path), cut)])
        ((lines, _, tensors, graphs),) = in_new_process(
            compiled_starts, cache, [(str(tmp_path), {"dropout": 0.5})]
        )

        assert (len(first), stopped, graphs) == (2, True, 1)
        assert lines == expected_lines
        assert same_tensors(as_tensors(tensors), as_tensors(expected))


class Opaque(nn.Module):
    """A block with a part that torch.compile must not look into, as attention over rows of many lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        return torch.tanh(self.opaque(self.layer(x)) + 1)

    @torch.compiler.disable
    def opaque(self, x):
        return torch.sin(x)


def prepared(*blocks, recompute=False, backend="eager"):
    """Blocks as training prepares them, compiled by a backend that makes no kernels."""
    settings = Hyperparameters(torch_compile=True, gradient_checkpointing=recompute)
    return wrap(None, Modules(nn.Sequential(*blocks), blocks=blocks), settings, CPU, backend=backend).root


class TestGraphs:
    @pytest.mark.parametrize(("sizes", "graphs"), [([4, 4, 2] * 3, 1), ([4, 4, 1] * 3, 2), ([1, 1], 1)])
    def test_of_batches_of_all_sizes(self, fresh, sizes, graphs):
        """F1: dynamic dimensions are declared at the first call; torch takes a dimension of one for a constant,
        so a rest of one row makes a second graph. What is counted is what the backend was given.
        """
        backend = CompileCounter()
        block = prepared(Block(), backend=backend)
        for size in sizes:
            block(torch.ones(size, 8)).sum().backward()

        assert backend.frame_count == count_graphs() == graphs

    @pytest.mark.parametrize("recompute", [False, True])
    def test_equal_blocks_share_them(self, fresh, recompute):
        """Twelve equal blocks make two graphs, as the first one's input has no gradient; recomputed too."""
        root = prepared(*(Block() for _ in range(12)), recompute=recompute)
        for size in (4, 2, 3):
            root(torch.ones(size, 8)).sum().backward()

        assert count_graphs() == 2

    @pytest.mark.parametrize("recompute", [False, True])
    def test_of_a_block_with_a_part_that_is_not_compiled(self, fresh, recompute):
        """What stands before and after a call that torch.compile must not look into is compiled."""
        root = prepared(Opaque(), recompute=recompute)
        root(torch.ones(4, 8)).sum().backward()

        assert count_graphs() == 2

    def test_of_more_kinds_than_torch_allows(self, fresh):
        """Past torch's limit of eight nothing runs uncompiled in silence: ten kinds of blocks, ten graphs."""
        root = prepared(*(nn.Sequential(*(nn.Tanh() for _ in range(depth))) for depth in range(1, 11)))
        root(torch.ones(4, 8, requires_grad=True))

        assert count_graphs() == 10
        assert torch._dynamo.config.fail_on_recompile_limit_hit

    def test_nothing_compiled_is_told(self, tmp_path, fresh):
        """A loss that goes past the blocks would run uncompiled without a word."""

        def loss(modules, values, random):
            return modules.root[0].inner(torch.ones(len(values), 8)).sum()

        trainer = make_trainer(lambda run: nn.Sequential(Block()), loss, [1.0] * 10)
        training = open_training(trainer, tmp_path, torch_compile=True, **JOB)
        with pytest.raises(InternalError, match="compiled nothing; expected a loss that calls"):
            supervised.begin(training.trainer, training.run, None)


def test_the_first_call_leaves_nothing_behind(tmp_path, fresh):
    """It has the rows of a microbatch, and gradients, batch norm and random numbers are as before it."""
    sizes = []

    def loss(modules, values, random):
        sizes.append(len(values))
        return modules.root(torch.randn(len(values), 8) + 3).pow(2).sum()

    trainer = make_trainer(
        lambda run: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)), loss, [1.0] * 10, minimum_rows=2
    )
    training = open_training(trainer, tmp_path, torch_compile=True, **JOB)
    plain = training.run.settings.model_copy(update={"torch_compile": False})
    run = dataclasses.replace(training.run, settings=plain)
    state = supervised.begin(training.trainer, run, None)
    compile_blocks([state.modules.root], state.modules.root, SETTINGS, backend="eager")
    before, random = state.buffers.copies(), global_states()
    make_first_call(training.trainer, run, state.loss, state.buffers, contextlib.nullcontext())

    assert sizes == [4]
    assert all(torch.equal(*pair) for pair in zip(before, state.buffers.copies(), strict=True))
    assert all(each.grad is None for each in state.parameters)
    assert moved_generators(random) == []


def test_recomputed_dropout_is_the_same_dropout(fresh):
    """F4: compiled with recomputation, gradients with dropout on are bit for bit those compiled without it."""
    gradients = []
    for recompute in (False, True):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            root = prepared(Block(0.5), Block(0.5), recompute=recompute, backend="aot_eager_decomp_partition")
            root(torch.ones(64, 8)).pow(2).sum().backward()
        gradients.append({name: each.grad for name, each in root.named_parameters()})

    assert count_graphs() > 0
    assert same_tensors(*gradients)


class Configured(nn.Module):
    """A model of a library: its rates are in its configuration."""

    def __init__(self, **rates) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.config = types.SimpleNamespace(**rates)


class TestMemoryBudget:
    @pytest.mark.parametrize(
        ("root", "told"),
        [
            (nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), "1 has p = 0.1"),
            (nn.Sequential(nn.AlphaDropout(0.3)), "0 has p = 0.3"),
            (nn.MultiheadAttention(2, 1, dropout=0.2), "the model has dropout = 0.2"),
            (nn.Sequential(nn.LSTM(2, 2, num_layers=2, dropout=0.4)), "0 has dropout = 0.4"),
            (Configured(attention_dropout=0.5), "the model has attention_dropout = 0.5"),
        ],
    )
    def test_with_dropout_is_refused(self, fresh, root, told):
        """Below 1.0 torch draws dropout anew in the backward pass: gradients are wrong, so it is not begun."""
        with functorch_config.patch(activation_memory_budget=0.5):
            with pytest.raises(InternalError, match=f"is 0.5 and {told}.*torch_compile to false"):
                wrap(None, Modules(root), SETTINGS, CPU)
            wrap(None, Modules(root), Hyperparameters(torch_compile=False), CPU)
        wrap(None, Modules(root), SETTINGS, CPU)

    def test_without_dropout_is_allowed(self, fresh):
        """Rates of zero, and words that are no rates, do not count."""
        roots = [nn.Dropout(0.0), Configured(attention_dropout=0.0, drop_last=True, classifier_dropout=None)]
        with functorch_config.patch(activation_memory_budget=0.5):
            for root in roots:
                wrap(None, Modules(root), SETTINGS, CPU)

        assert all("forward" in vars(root) for root in roots)  # to be compiled at the first call


@pytest.mark.parametrize(
    ("mode", "options"), [("default", {}), ("max-autotune", {"mode": "max-autotune-no-cudagraphs"})]
)
def test_no_mode_brings_cuda_graphs(fresh, mode, options):
    """Blocks that feed each other and gradients that accumulate fail with them, on ROCm without a word."""
    told = []

    def backend(module, inputs, **keywords):
        told.append(keywords)
        return module.forward

    block = Block()
    compile_blocks([block], block, SETTINGS.model_copy(update={"compile_mode": mode}), backend=backend)
    block(torch.ones(2, 8))

    assert told == [options]
