"""Attention over rows laid end to end."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from app_trainer_sdk.training.device import planned_for
from trainer_images.text import batches, loss, model, packing, weights
from trainer_images.text.tokens import TokenRow


def token_rows(lengths, *, trained_from=1):
    import numpy

    generator = numpy.random.default_rng(0)
    return [
        TokenRow(generator.integers(3, 49152, length).astype(numpy.int32), numpy.arange(length) >= trained_from)
        for length in lengths
    ]


@pytest.fixture(scope="module")
def plain(narrow):
    return weights.load_model(narrow, dtype=torch.float32, keep_layers=4).eval()


@pytest.fixture
def packed(make_run, narrow):
    # As transformers made it: what a block keeps is test_lean's.
    run = make_run(method="full", base=narrow, keep_layers=4, gradient_checkpointing=True)
    return model.build_model(run, weights=True)


def test_rows_end_to_end_give_the_hidden_states_of_rows_alone(packed, plain):
    """Each row's hidden states equal those of transformers' own forward over that row, to 1e-5."""
    rows = token_rows([7, 1, 30, 12])
    batch = batches.collate(rows)

    with torch.no_grad():
        together, _ = loss.hidden_states(packed, batch)
        alone = [
            plain.model(torch.tensor(row.ids).long().unsqueeze(0)).last_hidden_state[0, :-1] for row in rows
        ]

    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-4, atol=1e-5)


def test_a_row_sees_nothing_of_its_neighbours(packed):
    """Changing one row leaves the hidden states of the others bit-equal."""
    rows = token_rows([9, 8, 11])
    changed = [rows[0], TokenRow(rows[1].ids[::-1].copy(), rows[1].trained), rows[2]]

    with torch.no_grad():
        first, _ = loss.hidden_states(packed, batches.collate(rows))
        second, _ = loss.hidden_states(packed, batches.collate(changed))

    assert torch.equal(first[:8], second[:8])
    assert torch.equal(first[15:], second[15:])
    assert not torch.equal(first[8:15], second[8:15])


def test_recomputed_blocks_give_the_same_gradient(packed):
    """Non-reentrant recomputation around each block's forward changes no gradient."""
    batch = batches.collate(token_rows([9, 8, 11]))
    weight = packed.blocks[0].mlp.up_proj.weight
    loss.token_loss(packed, batch).sum.backward()
    expected, weight.grad = weight.grad, None
    for block in packed.blocks:
        block.forward = recomputing(block.forward)

    loss.token_loss(packed, batch).sum.backward()

    torch.testing.assert_close(weight.grad, expected)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # torch's own tracing looks at it
def test_compiled_blocks_are_not_compiled_again_for_other_lengths(packed):
    """Blocks compiled with dynamic shapes keep their result and one graph for any lengths of rows."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    first = batches.collate(token_rows([9, 8, 11]))
    expected = loss.token_loss(packed, first).sum
    for block in packed.blocks:
        block.compile(backend=counter, dynamic=True)
    actual = loss.token_loss(packed, first).sum
    graphs = counter.frame_count
    for lengths in ([5, 7], [20, 3, 4, 5], [12]):
        loss.token_loss(packed, batches.collate(token_rows(lengths)))

    torch.testing.assert_close(actual, expected)
    assert graphs == counter.frame_count


def heads():
    """Query of four heads, key and value of two, over 12 tokens."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(1, count, 12, 16, generator=generator) for count in (4, 2, 2)]


def heads_on_a_card(dtype, width=16):
    """The same without data."""
    with FakeTensorMode():
        return [torch.empty(1, count, 12, width, dtype=dtype, device="cuda") for count in (4, 2, 2)]


def attended(query, key, value):
    layout = packing.RowLayout([7, 5], torch.tensor([0, 7, 12], dtype=torch.int32))
    return packing.attend(None, query, key, value, None, scaling=0.25, row_layout=layout)[0]


class Called(TorchDispatchMode):
    """Names of the operators called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.names.append(function._schema.name)
        return function(*arguments, **(keywords or {}))


KERNEL = "torch_attn::_varlen_attn"
has_varlen = pytest.mark.skipif(packing.varlen_attn is None, reason="this torch has no variable-length kernel")


@has_varlen
def test_on_a_card_without_the_kernel_rows_are_computed_one_by_one():
    """The kernel wants compute capability 8.0, 16 bits, heads of a multiple of 8, and not ROCm."""
    half, odd, whole = (
        heads_on_a_card(*each) for each in [(torch.float16,), (torch.bfloat16, 12), (torch.float32,)]
    )

    assert packing.has_kernel(*half, works=lambda asked: True)
    assert not packing.has_kernel(*half, works=lambda asked: False)
    assert not packing.has_kernel(*half, works=lambda asked: True, rocm=True)
    assert not packing.has_kernel(*odd, works=lambda asked: True)
    assert not packing.has_kernel(*whole, works=lambda asked: True)


@has_varlen
def test_under_autocast_weights_in_fp32_get_the_kernel_too():
    """A rotated query is in the precision of the weights, a value in autocast's."""
    with planned_for("cuda"), FakeTensorMode(), Called() as called, torch.autocast("cpu", torch.bfloat16):
        query, key, value = heads()
        out = attended(query, key, value.bfloat16())

    assert out.dtype == torch.bfloat16
    assert KERNEL in called.names


def test_rows_one_by_one_on_a_card_share_no_keys():
    """Torch's attention without the kernel would make scores of tokens by tokens for heads that share keys."""
    inputs = heads()
    with planned_for("cuda"), Called() as called:
        there = attended(*inputs)

    assert KERNEL not in called.names
    torch.testing.assert_close(there, attended(*inputs))


def recomputing(forward):
    def wrapped(*arguments, **keywords):
        return checkpoint(forward, *arguments, use_reentrant=False, **keywords)

    return wrapped
